-- The table that BigQuery's change data capture keeps by the topic's change_type and change_sequence.
-- max_staleness: a query that may be so old reads the table as it is, and does not wait for changes to be applied.
CREATE TABLE IF NOT EXISTS unified_orders (
  order_id INT64,
  customer_id INT64,
  product_id INT64,
  status STRING,
  total_amount NUMERIC(10, 2),
  created_at TIMESTAMP,
  source_database STRING,
  fulfillment_status STRING,
  composite_key STRING NOT NULL,
  processed_at TIMESTAMP,
  PRIMARY KEY (composite_key) NOT ENFORCED
)
CLUSTER BY composite_key
OPTIONS (max_staleness = INTERVAL 15 MINUTE);
