"""A `Status` as one HTML document for people: it needs no network and no script, and can be mailed or archived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from monitoring import model
from monitoring.model import STAGES, Seen, Stage, Status
from monitoring.units import NOTHING, duration, moment, number, rate, size

# The worst first, with shapes that differ without their colours.
FAULTS: tuple[Seen, ...] = ("critical", "warning")
LEVELS: dict[Seen, str] = {"critical": "■ critical", "warning": "▲ warning", "ok": "● ok", "unknown": "○ not looked at"}
COLOURS = 8
# A part of a bar is never thinner (percent): one record of a million is to be seen.
LEAST_WIDTH = 0.8

CSS = """
:root { color-scheme: light dark; --page: #f6f8fa; --card: #fff; --text: #1f2328; --dim: #59636e; --line: #d1d9e0;
  --ok: #1a7f37; --warning: #9a6700; --critical: #cf222e; --unknown: #59636e; --c0: #2f6fdb; --c1: #d9822b;
  --c2: #2a9d8f; --c3: #b5479b; --c4: #7a6ad8; --c5: #8a9a1f; --c6: #a0604c; --c7: #7d8590 }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --card: #161b22; --text: #e6edf3; --dim: #9198a1;
  --line: #3d444d; --ok: #3fb950; --warning: #d29922; --critical: #f85149; --unknown: #9198a1; --c0: #589bff;
  --c1: #eb9b4a; --c2: #3fbfae; --c3: #d874bf; --c4: #9c8cf0; --c5: #b0c046; --c6: #c9886f } }
* { box-sizing: border-box; min-width: 0 } body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
main { max-width: 1240px; margin: 0 auto; padding: 12px; display: flex; flex-wrap: wrap; gap: 12px }
header, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px;
  flex: 1 1 100% } .half { flex: 1 1 min(100%, 500px) } header { border-left: 8px solid var(--level) }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 } h2 { font-size: 1.1rem; margin: 0 0 8px } p { margin: 4px 0 }
h3 { font-size: 1rem; margin: 12px 0 6px } ul, ol, dl, dd { list-style: none; margin: 0; padding: 0 }
.dim, dt, summary { color: var(--dim) } .ok { --level: var(--ok) } .warning { --level: var(--warning) }
.critical { --level: var(--critical) } .unknown { --level: var(--unknown) }
.level { color: var(--level); font-weight: 600; white-space: nowrap } .flow { display: flex; gap: 18px }
.findings li { border-left: 4px solid var(--level); padding: 2px 0 2px 12px; margin: 10px 0 }
.flow li { position: relative; flex: 1 1 0; border: 1px solid var(--level); border-top-width: 5px; border-radius: 6px;
  padding: 6px 8px; font-size: .87rem }
.flow li + li::before { content: "→"; position: absolute; left: -17px; top: 26px; width: 14px; color: var(--dim) }
.facts div { display: flex; flex-wrap: wrap; gap: 0 8px; justify-content: space-between }
.flow > .unknown { border-style: dashed } details, details li { margin: 5px 0 }
td.number, th.number { text-align: right; white-space: nowrap } .scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; overflow-wrap: break-word }
th, td { text-align: left; padding: 5px 12px 5px 0; border-top: 1px solid var(--line); vertical-align: top }
thead th { color: var(--dim); font-weight: 400; border: 0 } th:last-child, td:last-child { padding-right: 0 }
svg { display: block; width: 100% } .bar { height: 14px; margin: 5px 0; background: var(--page); border-radius: 3px }
.columns { height: 64px; max-width: 480px } rect { stroke: var(--card); vector-effect: non-scaling-stroke }
.parts, .row { display: flex; flex-wrap: wrap; gap: 2px 16px } .row { justify-content: space-between }
.parts { font-size: .9rem } .passes > li { border-top: 1px solid var(--line); padding: 8px 0 }
.reasons li { margin: 6px 0 } .reasons .row { flex-wrap: nowrap } .row span:last-child { flex: none; max-width: 100% }
@media (max-width: 900px) {
  .flow { flex-direction: column; gap: 20px } .flow li + li::before { content: "↓"; left: 12px; top: -25px }
  .facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(64px, 1fr)); gap: 0 6px }
  .facts div, table, tbody, tr, td, tbody th { display: block; overflow-wrap: anywhere } thead { display: none }
  tr { border-top: 1px solid var(--line); padding: 6px 0 } td, tbody th { border: 0; padding: 1px 0 }
  td { display: flex; justify-content: space-between; gap: 16px; text-align: right }
  td::before { content: attr(data-label); color: var(--dim); flex: none } }
"""


class Html(str):
    """Text that is HTML already: everything else is escaped."""


def page(status: Status) -> str:
    """The whole document: what is wrong and what to do about it first, then the flow, then its parts in numbers."""
    parts = (
        *(_headline(status), _findings(status.findings), _flow(status.stages)),
        *(_freshness(status.freshness), _headroom(status.headroom)),
        *(_records(status.records), _quarantine(status.quarantine)),
        *(_gates(status.gates), _suspended(status.suspended)),
        *(_passes(status.passes), _tables(status.tables)),
    )
    settings = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    title = _tag("title", f"{status.level} · lakehouse status")
    head = _tag("head", Html(settings), title, _tag("style", Html(CSS)))
    return f"<!DOCTYPE html>\n{_tag('html', head, _tag('body', _tag('main', *parts)), lang='en')}\n"


def _tag(name: str, /, *content: str, **attributes: str) -> Html:
    """An element. `class_` is the attribute class, `data_label` is data-label."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(one)}"' for key, one in attributes.items())
    inner = "".join(one if isinstance(one, Html) else escape(one) for one in content)
    return Html(f"<{name}{written}>{inner}</{name}>")


def _section(title: str, *content: str, width: str = "half") -> Html:
    return _tag("section", _tag("h2", title), *content, class_=width)


def _dim(text: str) -> Html:
    return _tag("p", text, class_="dim")


def _level(level: Seen) -> Html:
    return _tag("span", LEVELS[level], class_=f"level {level}")


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, text: Sequence[str] = ()) -> Html:
    """A table whose rows are cards on a phone. Columns are of numbers, but the first and those of `text`.

    The roles are said once more: an element that CSS shows as a block loses its own.
    """
    kinds = {heading: "text" if heading in (headings[0], *text) else "number" for heading in headings}

    def row(first: str, *rest: str) -> Html:
        cells = (
            _tag("td", _tag("span", cell), data_label=heading, class_=kinds[heading], role="cell")
            for heading, cell in zip(headings[1:], rest, strict=True)
        )
        return _tag("tr", _tag("th", first, scope="row", role="rowheader"), *cells, role="row")

    tops = (_tag("th", heading, scope="col", class_=kind, role="columnheader") for heading, kind in kinds.items())
    head = _tag("thead", _tag("tr", *tops, role="row"), role="rowgroup")
    body = _tag("tbody", *(row(*cells) for cells in rows), role="rowgroup")
    return _tag("div", _tag("table", head, body, role="table"), class_="scroll")


def _bar(parts: Mapping[str, float], shown: Mapping[str, str], colours: Mapping[str, str], *, of: float = 0.0) -> Html:
    """A stacked bar; as long as its parts are `of` a whole, or all of the width. `shown`: the parts in words."""
    total = sum(parts.values())
    length = 100 * total / of if of else 100.0
    widths = {name: max(length * part / total, LEAST_WIDTH) for name, part in parts.items() if part > 0}
    shrunk = min(1.0, max(length, LEAST_WIDTH) / sum(widths.values())) if widths else 1.0
    rects, x = [], 0.0
    for name, width in widths.items():
        rects.append(_rect(x, 0, width * shrunk, 1, colours[name], _tag("title", name)))
        x += width * shrunk
    said = ", ".join(f"{name} {value}" for name, value in shown.items())
    return _svg(rects, said, view="0 0 100 1", class_="bar")


def _rect(x: float, y: float, width: float, height: float, fill: str, *content: str) -> Html:
    place = {"x": x, "y": y, "width": width, "height": height}
    return _tag("rect", *content, fill=fill, **{name: f"{value:.3f}" for name, value in place.items()})


def _svg(shapes: Iterable[str], said: str, *, view: str, class_: str) -> Html:
    scaling = {"viewBox": view, "preserveAspectRatio": "none"}
    return _tag("svg", *shapes, class_=class_, role="img", aria_label=said, **scaling)


def _colours(names: Iterable[str]) -> Mapping[str, str]:
    """A colour for every name, the same in all bars of a section."""
    return {name: f"var(--c{at % COLOURS})" for at, name in enumerate(dict.fromkeys(names))}


def _legend(shown: Mapping[str, str], colours: Mapping[str, str]) -> Html:
    squares = {name: _tag("span", "■ ", style=f"color: {colours[name]}") for name in shown}
    entries = (_tag("li", square, f"{name} {shown[name]}") for name, square in squares.items())
    return _tag("ul", *entries, class_="parts")


def _headline(status: Status) -> Html:
    counts = {level: sum(one.level == level for one in status.findings) for level in FAULTS}
    said = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
    line = _dim(f"{said or 'Nothing is beyond a threshold'} · {moment(status.at)}")
    lock = [_tag("p", f"Works on the warehouse now: {status.lock}")] if status.lock else []
    return _tag("header", _tag("h1", "Lakehouse: ", _level(status.level)), line, *lock, class_=status.level)


def _findings(findings: Sequence[model.Finding]) -> Html:
    def item(finding: model.Finding) -> Html:
        title = _tag("p", _level(finding.level), " ", _tag("strong", finding.where))
        remedy = [_tag("p", _tag("span", "What to do: ", class_="dim"), finding.remedy)] if finding.remedy else []
        return _tag("li", title, _tag("p", finding.what), *remedy, class_=finding.level)

    ordered = sorted(findings, key=lambda one: list(LEVELS).index(one.level))
    return _section("Findings", _tag("ul", *map(item, ordered), class_="findings"), width="all") if findings else Html()


def _flow(stages: Sequence[Stage]) -> Html:
    def of(source: str) -> Html:
        ordered = sorted((one for one in stages if one.source == source), key=lambda one: STAGES.index(one.stage))
        return _tag("article", _tag("h3", source), _tag("ol", *map(_box, ordered), class_="flow"), *_notes(ordered))

    sources = dict.fromkeys(one.source for one in stages)
    return _section("Flow", *map(of, sources), width="all") if stages else Html()


def _box(stage: Stage) -> Html:
    facts = (_tag("div", _tag("dt", label), _tag("dd", value)) for label, value in _facts(stage).items())
    title = _tag("div", _tag("strong", stage.stage), " ", _level(stage.level))
    return _tag("li", title, _tag("dl", *facts, class_="facts"), class_=stage.level)


def _facts(stage: Stage) -> Mapping[str, str]:
    # The seconds of Kafka Connect are no age of a pending record.
    age = "delay" if stage.stage == "connect" else "oldest"
    pending = {"pending": number(stage.lag_records), age: duration(stage.lag_seconds), "log": size(stage.lag_bytes)}
    return {label: fact for label, fact in {**pending, "rate": rate(stage.rate)}.items() if fact != NOTHING}


def _notes(stages: Sequence[Stage]) -> Iterator[Html]:
    said = {one.stage: f"{one.what} {one.remedy}".strip() for one in stages}
    notes = [_tag("li", _tag("strong", stage), f": {text}") for stage, text in said.items() if text]
    is_open = {"open": ""} if any(one.level in FAULTS for one in stages) else {}
    if notes:
        yield _tag("details", _tag("summary", "What was seen"), _tag("ul", *notes), **is_open)


def _freshness(freshness: Sequence[model.Freshness]) -> Html:
    rows = ([one.source, duration(one.p50), duration(one.p99), number(one.rows)] for one in freshness)
    said = _dim("From a change's commit in the source, or when it could first be read, to its row in gold.")
    table = _table(["source", "p50", "p99", "rows"], rows)
    return _section("Freshness", said, table, width="all") if freshness else Html()


def _headroom(headroom: Sequence[model.Headroom]) -> Html:
    def row(one: model.Headroom) -> Sequence[str]:
        never = one.catch_up_seconds is None and one.arrival is not None and one.drain is not None
        caught_up = "never at these rates" if never else duration(one.catch_up_seconds)
        lost = [duration(one.lost_in_seconds), one.lost_by or NOTHING]
        return [one.source, rate(one.arrival), rate(one.drain), caught_up, *lost]

    headings = ["source", "arrival", "drain", "caught up in", "lost in", "lost by"]
    said = _dim("Records that come, records that a pass takes, and when those that were not read are lost.")
    table = _table(headings, map(row, headroom), text=headings[5:])
    return _section("Headroom", said, table, width="all") if headroom else Html()


def _records(records: Sequence[model.Records]) -> Html:
    colours = _colours(outcome for one in records for outcome in one.outcomes)

    def of(one: model.Records) -> Html:
        shown = {outcome: number(count) for outcome, count in one.outcomes.items()}
        total = _tag("span", f"{number(sum(one.outcomes.values()) + one.unaccounted)} records", class_="dim")
        rest = _tag("p", _level("critical" if one.unaccounted else "ok"), f" unaccounted {number(one.unaccounted)}")
        bar = _bar(one.outcomes, shown, colours)
        return _tag("article", _tag("h3", one.source, " ", total), bar, _legend(shown, colours), rest)

    return _section("Records by outcome", *map(of, records)) if records else Html()


def _quarantine(quarantine: Sequence[model.Quarantine]) -> Html:
    def of(one: model.Quarantine) -> Html:
        share = [] if one.share is None else [f"{number(100 * one.share)} % of the last day's records"]
        oldest = [] if one.oldest_seconds is None else [f"the oldest for {duration(one.oldest_seconds)}"]
        said = ", ".join([f"{number(one.open)} open", *share, *oldest])
        reasons = sorted(one.by_reason, key=lambda reason: -one.by_reason[reason])
        items = (_reason(reason, one.by_reason[reason], of=max(one.by_reason.values())) for reason in reasons)
        return _tag("article", _tag("h3", one.source), _tag("p", said), _tag("ul", *items, class_="reasons"))

    return _section("Quarantine", *map(of, quarantine)) if quarantine else Html()


def _reason(reason: str, count: int, *, of: int) -> Html:
    title = _tag("div", _tag("span", reason), _tag("span", number(count)), class_="row")
    return _tag("li", title, _bar({reason: count}, {reason: number(count)}, _colours([reason]), of=of))


def _gates(gates: Sequence[model.Gate]) -> Html:
    def row(one: model.Gate) -> Sequence[str]:
        level = _level("critical" if one.blocks else "warning" if one.failed_rules else "ok")
        verdict = "blocks the source" if one.blocks else "passes"
        return [one.source, one.gate, level, verdict, ", ".join(one.failed_rules) or "none"]

    headings = ["source", "gate", "level", "verdict", "failed rules"]
    return _section("Gates", _table(headings, map(row, gates), text=headings)) if gates else Html()


def _suspended(suspended: Sequence[str]) -> Html:
    return _section("Suspended tables", _tag("ul", *(_tag("li", name) for name in suspended))) if suspended else Html()


def _passes(passes: Sequence[model.Pass]) -> Html:
    ordered = sorted(passes, key=lambda one: one.ended_at)
    colours = _colours(layer for one in ordered for layer in one.seconds)
    longest = max((_seconds(one) for one in ordered), default=0.0)
    rows = _tag("ol", *(_pass(one, colours, longest) for one in reversed(ordered)), class_="passes")
    return _section("Last passes", *_throughput(ordered), rows, width="all") if passes else Html()


def _seconds(one: model.Pass) -> float:
    return sum(one.seconds.values())


def _per_second(one: model.Pass) -> float:
    return one.records / _seconds(one) if _seconds(one) else 0.0


def _throughput(passes: Sequence[model.Pass]) -> Iterator[Html]:
    rates = [_per_second(one) for one in passes]
    most = max(rates, default=0.0)
    if most > 0:
        said = f"Throughput by pass, the oldest first: at most {rate(most)}, last {rate(rates[-1])}."
        columns = (_rect(at, 1 - one / most, 1, one / most, "var(--c0)") for at, one in enumerate(rates))
        yield from (_dim(said), _svg(columns, said, view=f"0 0 {len(rates)} 1", class_="columns"))


def _pass(one: model.Pass, colours: Mapping[str, str], longest: float) -> Html:
    shown = {layer: duration(seconds) for layer, seconds in one.seconds.items()}
    if len(shown) > 1:
        shown[max(one.seconds, key=lambda layer: one.seconds[layer])] += " (slowest)"
    did = f"{number(one.records)} records in {duration(_seconds(one))}: {rate(_per_second(one))}"
    when = _tag("span", f"{moment(one.ended_at)} · {one.run}", class_="dim")
    bar = _bar(one.seconds, shown, colours, of=longest)
    return _tag("li", _tag("div", _tag("strong", did), when, class_="row"), bar, _legend(shown, colours))


def _tables(tables: Sequence[model.TableFiles]) -> Html:
    def row(one: model.TableFiles) -> Sequence[str]:
        counts = [number(one.files), size(one.bytes), number(one.deletion_vectors), number(one.versions)]
        return [one.table, *counts, number(one.written_per_changed)]

    headings = ["table", "files", "size", "deletion vectors", "versions", "written per changed byte"]
    return _section("Tables", _table(headings, map(row, tables)), width="all") if tables else Html()
