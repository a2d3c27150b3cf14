"""What gold adds to an order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_fulfillment(orders: DataFrame, *, by_status: Mapping[str, str], otherwise: str) -> DataFrame:
    """The orders with `fulfillment_status`, looked up by `status`; `otherwise` for every other status and for none."""
    status = F.col("status")
    looked_up = F.lit(otherwise)
    for known, fulfillment in by_status.items():
        looked_up = F.when(status == known, fulfillment).otherwise(looked_up)
    return orders.withColumn("fulfillment_status", looked_up)
