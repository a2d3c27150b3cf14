"""How the flow is: what is seen of each stage, judged by thresholds. It reads, and changes no table and no topic."""
