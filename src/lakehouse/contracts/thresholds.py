"""From which value on what is measured is a warning, and from which it is critical: monitoring/thresholds.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from lakehouse.contracts.parts.base import Model

Level = Literal["ok", "warning", "critical"]


class Limits(Model):
    """The two values. Where less is worse, critical is the lower one."""

    warning: float = Field(ge=0, strict=False)
    critical: float = Field(ge=0, strict=False)

    def level(self, value: float) -> Level:
        """How bad a value is: from the limit itself on."""
        sign = 1 if self.critical >= self.warning else -1
        if sign * value >= sign * self.critical:
            return "critical"
        return "warning" if sign * value >= sign * self.warning else "ok"


def _rising(limits: Limits) -> Limits:
    if limits.critical < limits.warning:
        raise ValueError("critical is below warning: more is worse here")
    return limits


Rising = Annotated[Limits, AfterValidator(_rising)]


class Thresholds(Model):
    """What `lakehouse status` judges by. Seconds, bytes, files, and shares from 0 to 1."""

    lag_seconds: Rising
    """Of bronze, silver, gold and the topic: the age of the oldest record that was not taken."""
    connector_seconds: Rising
    """From the commit of a change in the source to its record in Kafka."""
    heartbeat_seconds: Rising
    """Since a connector's last record or heartbeat."""
    wal_bytes: Rising
    """What PostgreSQL keeps of its WAL for a slot."""
    freshness_seconds: Rising
    """From the commit of a change in the source, or from when a run could first read it if that is later, to its row in
    gold: of 99 of 100 rows."""
    pass_seconds: Rising
    """How long the last pass through all layers took."""
    run_seconds: Rising
    """Since a run last wrote anything down."""
    quarantine_share: Rising
    """How many of the records of the last day went to quarantine."""
    quarantine_seconds: Rising
    """The age of the oldest quarantine entry that is open."""
    headroom_seconds: Limits
    """Until Kafka's retention, the binlog's expiry or the slot's limit loses what was not read. Less is worse."""
    table_files: Rising
    """How many files a table has."""

    @model_validator(mode="after")
    def _headroom_falls(self) -> Thresholds:
        if self.headroom_seconds.critical >= self.headroom_seconds.warning:
            raise ValueError("headroom_seconds: critical is not below warning, and less time is worse")
        return self
