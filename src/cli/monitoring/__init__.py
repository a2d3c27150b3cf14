"""Commands that look at the whole flow: status, doctor, explain and report. They change nothing but --probe does."""
