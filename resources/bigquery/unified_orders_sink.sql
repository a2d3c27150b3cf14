-- The table that the sink connector (resources/connect/bigquery-sink.json) merges the topic into.
-- kafka_key is the record's key, by which the connector finds the row; the others are the columns of gold.
CREATE TABLE IF NOT EXISTS unified_orders (
  kafka_key STRUCT<composite_key STRING>,
  order_id INT64,
  customer_id INT64,
  product_id INT64,
  status STRING,
  total_amount NUMERIC(10, 2),
  created_at TIMESTAMP,
  source_database STRING,
  fulfillment_status STRING,
  composite_key STRING,
  processed_at TIMESTAMP
)
CLUSTER BY composite_key;
