"""`lakehouse quarantine`: the records that may not pass, looked at and decided about."""
