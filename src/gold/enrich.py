"""What gold adds to an order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakehouse.contracts import Fulfillment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_fulfillment(orders: DataFrame, rule: Fulfillment | None) -> DataFrame:
    """The orders with `fulfillment_status`, by the rule; NULL where the contract has none."""
    if rule is None:
        return orders.withColumn("fulfillment_status", F.lit(None).cast("string"))
    value = F.col(rule.column)
    looked_up = F.lit(rule.otherwise)
    for known, fulfillment in rule.values.items():
        looked_up = F.when(value == known, fulfillment).otherwise(looked_up)
    return orders.withColumn("fulfillment_status", looked_up)
