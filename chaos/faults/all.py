"""Every fault by its name."""

from __future__ import annotations

from chaos.faults import connect, databases, kafka, processes, storage
from chaos.faults.fault import Fault

FAULTS = {
    value.name: value
    for module in (processes, storage, kafka, connect, databases)
    for value in vars(module).values()
    if isinstance(value, Fault)
}
