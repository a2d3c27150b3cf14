"""`lakehouse connect`: connectors of Kafka Connect, rendered, checked, deployed and moved."""
