"""What is condensed of the jobs' own tables says as much about records and offsets as before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.retention import REPLACED_BY, condensed, last_results
from silver.order.ranges import ReadRanges
from silver.order.runs import SEGMENT_KEY
from silver.order.state import OUTCOMES, batch_name, correction_row, feed_row, read_row, suspended_row, writer_of

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
LATER = BEGINNING + timedelta(days=1000)
PLACES = [("orders", "id", 0), ("orders", "id", 1), ("outbox", "id", 0)]
FEEDS = ["orders", "outbox", None]
COLUMNS = (
    *("layer", "run", "source", "checkpoint", "generation", "writer", "batch", "sequence", "feed", "topic", "topic_id"),
    *("partition", "first_offset", "last_offset", "read", *OUTCOMES, "gaps", "judged", "failed_rules"),
    *("absent_columns", "run_id", "snapshot_at", "segment", "epochs", "cutoffs", "first_sent", "unreadable"),
    *("suspended", "resumed", "read_ranges", "planned", "step", "state", "fingerprint", "started_at", "written_at"),
)
Stored = dict[str, Any]


def stored(**values: Any) -> Stored:
    """A row of `ops.batches`, written `hours` after the beginning."""
    hours = values.pop("hours", 0)
    row = {**dict.fromkeys(COLUMNS), "written_at": BEGINNING + timedelta(hours=hours), **values}
    assert row.keys() == set(COLUMNS)
    return row


def of_silver(number: int | None, **values: Any) -> Stored:
    """A row that a batch of silver has written."""
    of_batch = {"layer": "silver", "source": "pg", "generation": "g", "writer": writer_of("pg", "g"), "run": "r"}
    hours = number or 0
    return stored(**{**of_batch, "batch": number, "sequence": hours + 1, "hours": hours, **values})


def placed(place: tuple[str, str, int]) -> dict[str, Any]:
    return dict(zip(("topic", "topic_id", "partition"), place, strict=True))


def audited(number: int, place: tuple[str, str, int], ranges: Sequence[tuple[int, int]], **values: Any) -> Stored:
    """The audit row of a batch that has read these ranges of offsets."""
    read = sum(last - first + 1 for first, last in ranges)
    gaps = [{"first": one[1] + 1, "last": then[0] - 1} for one, then in pairwise(ranges)]
    counts = {**dict.fromkeys(OUTCOMES, 0), "applied": read, "judged": read, "read": read}
    offsets = {"first_offset": ranges[0][0], "last_offset": ranges[-1][1], "gaps": gaps} if ranges else {}
    return of_silver(number, **{"feed": "orders", **placed(place), **counts, **offsets, **values})


@st.composite
def histories(draw: st.DrawFn) -> list[Stored]:
    """Batches of silver, each with some offsets of some topic-partitions, and what bronze has planned for them."""
    rows: list[Stored] = []
    ends = dict.fromkeys(PLACES, 0)
    for number in range(draw(st.integers(1, 12))):
        rows.append(of_silver(number, **read_row(ReadRanges({}, number))))
        for place in draw(st.lists(st.sampled_from(PLACES), unique=True)):
            begin = at = ends[place] + draw(st.sampled_from([0, 0, 0, 7]))
            ranges = []
            for length in draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)):
                ranges.append((at, at + length - 1))
                at += length + draw(st.integers(0, 1)) * 2
            ends[place] = at
            ranges = joined(ranges)
            read = sum(last - first + 1 for first, last in ranges)
            failed = draw(st.dictionaries(st.sampled_from(["a rule", "another"]), st.integers(1, 3)))
            quarantined = draw(st.integers(0, read))
            counts = {"applied": read - quarantined, "quarantined": quarantined, "failed_rules": failed}
            rows.append(audited(number, place, ranges, **counts))
            if quarantined and draw(st.booleans()):
                moved = correction_row("orders", place, {"quarantined": -quarantined, "applied": quarantined})
                rows.append(of_silver(number, **moved))
            plan = {"from_offset": begin, "until_offset": at, "records": read, "value_bytes": 10 * read}
            plan |= {"first_offset": ranges[0][0], "last_offset": ranges[-1][1], "first_ms": 1000 - number}
            rows.append(
                stored(layer="bronze", source="pg", checkpoint="c", batch=number, sequence=number, hours=number)
                | placed(place)
                | {"planned": plan}
            )
    return rows


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def offsets_read(rows: Sequence[Mapping[str, Any]]) -> dict[Any, list[int]]:
    """By topic-partition, the offsets that audit rows have read, in order."""
    found: dict[Any, list[int]] = {}
    for row in rows:
        if row["layer"] == "silver" and row["first_offset"] is not None:
            gaps = {at for gap in row["gaps"] for at in range(gap["first"], gap["last"] + 1)}
            own = [at for at in range(row["first_offset"], row["last_offset"] + 1) if at not in gaps]
            found.setdefault((row["topic"], row["partition"]), []).extend(own)
    return {place: sorted(offsets) for place, offsets in found.items()}


def sums(rows: Sequence[Mapping[str, Any]]) -> dict[Any, int]:
    """By feed, topic-partition and outcome, and by rule: how many records."""
    found: dict[Any, int] = {}
    for row in rows:
        if row["layer"] == "silver" and row["read"] is not None:
            place = (row["feed"], row["topic"], row["partition"])
            for name in ("read", *OUTCOMES, "judged"):
                found[*place, name] = found.get((*place, name), 0) + row[name]
            for rule, times in dict(row["failed_rules"] or {}).items():
                found[*place, rule] = found.get((*place, rule), 0) + times
    return {name: number for name, number in found.items() if number}


def planned(rows: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
    """By topic-partition, the offsets that bronze was to read, and what came of them."""
    plans: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["planned"] is not None:
            plans.setdefault((row["topic"], row["partition"]), []).append(row["planned"])
    return {
        place: (
            sorted(at for one in own for at in range(one["from_offset"], one["until_offset"])),
            sum(one["records"] for one in own),
            sum(one["value_bytes"] for one in own),
            min(one["first_offset"] for one in own),
            max(one["last_offset"] for one in own),
            min(one["first_ms"] for one in own),
        )
        for place, own in plans.items()
    }


def same(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@given(histories())
def test_sums_and_offsets_stay_in_a_row_a_topic_partition(rows: list[Stored]) -> None:
    left = condensed(rows, before=LATER)
    assert sums(left) == sums(rows)
    assert offsets_read(left) == offsets_read(rows)
    assert planned(left) == planned(rows)
    audit = [row for row in left if row["read"] is not None]
    assert len(audit) == len({(row["feed"], row["topic"], row["partition"]) for row in audit})
    assert len([row for row in left if row["read_ranges"] is not None]) == 1


@given(histories(), st.integers(0, 12))
def test_it_does_not_matter_how_often_or_when(rows: list[Stored], hours: int) -> None:
    whole = condensed(rows, before=LATER)
    assert same(condensed(whole, before=LATER)) == same(whole)
    earlier = BEGINNING + timedelta(hours=hours)
    looked_at = [row for row in rows if row["written_at"] < earlier or row["read_ranges"] is not None]
    others = [row for row in rows if row not in looked_at]
    assert same(condensed([*condensed(looked_at, before=earlier), *others], before=LATER)) == same(whole)


def test_what_is_replaced_is_what_silver_knows_apart() -> None:
    assert ("source", "generation", "feed", *SEGMENT_KEY) == REPLACED_BY


def test_recent_batches_stay() -> None:
    rows = [audited(1, PLACES[0], [(0, 4)]), audited(2, PLACES[0], [(5, 9)]), audited(30, PLACES[0], [(10, 12)])]
    left = condensed(rows, before=BEGINNING + timedelta(hours=3))
    # The last one is not asked for: it is not old, and replaces nothing.
    assert [(row["batch"], row["run"], row["first_offset"], row["last_offset"]) for row in left if row["read"]] == [
        (30, "r", 10, 12),
        (2, None, 0, 9),
    ]


def test_a_batch_that_does_not_add_up_is_still_found() -> None:
    """It has read more than it has counted, or more than its offsets have, or offsets that another one has read."""
    lost = audited(1, PLACES[0], [(0, 4)], applied=4)
    more = audited(2, PLACES[0], [(5, 9)], read=6, applied=6)
    sound = [audited(3, PLACES[0], [(10, 11)]), audited(4, PLACES[0], [(12, 13)])]
    left = condensed([lost, more, *sound], before=LATER)
    assert lost in left
    assert more in left
    assert len(left) == 3
    twice = [audited(1, PLACES[0], [(0, 4)]), audited(2, PLACES[0], [(4, 9)])]
    assert same(condensed(twice, before=LATER)) == same(twice)


def test_feeds_of_one_topic_are_one_batch() -> None:
    """The offsets of a batch are in the row of its first feed: what all of them have read is compared with these."""
    shared = [
        audited(1, PLACES[0], [(0, 4)], read=3, applied=3, judged=3),
        audited(1, PLACES[0], [], feed="others", read=2, applied=2),
        audited(2, PLACES[0], [(5, 6)], feed="others"),
    ]
    left = condensed(shared, before=LATER)
    assert {row["batch"] for row in left} == {2}
    assert sorted((row["feed"], row["read"]) for row in left) == [("orders", 3), ("others", 4)]


def test_an_earlier_silver_is_forgotten() -> None:
    before = of_silver(1, **read_row(ReadRanges({}, 1)))
    rebuilt = of_silver(None, generation="h", sequence=9, hours=9, **read_row(ReadRanges()))
    epochs = of_silver(2, **feed_row("orders", epochs=[{"run_id": "a", "topic": "orders", "epoch": 1}]))
    left = condensed([before, audited(1, PLACES[0], [(0, 4)]), epochs, rebuilt], before=LATER)
    assert left == [rebuilt]


def test_what_no_later_row_replaces_stays() -> None:
    step = stored(layer="bronze", source="pg", step={"change": 0}, **placed(PLACES[0]))
    epochs = of_silver(2, **feed_row("orders", epochs=[{"run_id": "a", "topic": "orders", "epoch": 1}]))
    request = of_silver(None, writer=writer_of("pg", "g", "request", "orders"), sequence=3)
    request |= correction_row("orders", PLACES[0], {"quarantined": -1, "applied": 1}) | {"failed_rules": None}
    assert same(condensed([step, epochs, request], before=LATER)) == same([step, epochs, request])


def test_pending_ranges_go_when_the_table_has_taken_them() -> None:
    waits = [
        of_silver(number, **suspended_row("orders", PLACES[0], first=number, last=number, records=1, new=None))
        for number in (1, 2, 5)
    ]
    resumed = of_silver(2, writer=writer_of("pg", "g", "resumed orders"), hours=3, **feed_row("orders", resumed=True))
    left = condensed([*waits, resumed], before=LATER)
    assert same(left) == same([waits[2], resumed])


def test_the_last_state_of_gold_and_the_last_that_a_run_left_stay() -> None:
    states = [stored(layer="gold", sequence=number, state=f"{number}", hours=number) for number in (1, 2, 4)]
    runs = [stored(layer="run", run=str(hours), fingerprint={"made_by": ""}, hours=hours) for hours in range(3)]
    left = condensed([*states, *runs], before=LATER)
    assert same(left) == same([states[2], runs[2]])


def test_a_state_of_gold_that_is_replaced_is_not_kept_and_its_times_are() -> None:
    """Each has all of it: what a start reads must not grow with the runs of thirty days."""
    states = [stored(layer="gold", sequence=number, state=f"{number}", hours=number) for number in (1, 2, 4)]
    before = states[1]["written_at"]
    left = condensed(states, before=before)
    assert same(left) == same([{**states[1], "state": None}, states[2]])
    assert same(condensed(left, before=before)) == same(left)


def test_of_results_the_last_judgement_of_each_gate_and_table_stays() -> None:
    def result(gate: str, feed: str | None, rule: str, hours: int) -> Stored:
        at = BEGINNING + timedelta(hours=hours)
        return {"gate": gate, "source": "pg", "feed": feed, "rule": rule, "evaluated_at": at}

    early = [result("silver", "orders", "a", 1), result("gold", "orders", "b", 1)]
    late = [result("silver", "orders", "a", 2), result("silver", "orders", "c", 2)]
    assert last_results([*early, *late]) == [*late, early[1]]


def test_a_batch_is_called_by_its_writer_and_number() -> None:
    """Whether one has ended is asked by name: what is condensed has the number of its last."""
    (left,) = condensed([audited(1, PLACES[0], [(0, 4)]), audited(2, PLACES[0], [(5, 9)])], before=LATER)
    assert batch_name(left["writer"], left["batch"]) == batch_name(writer_of("pg", "g"), 2)
