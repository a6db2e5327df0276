# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The page and the summary of `bench matrix`, made from its rows."""
import html
import statistics

GOAL = 1.02
BOUND = 1.3  # a step of DDP over computation alone, above which communication binds a cell
NEAR = 0.10  # largest error of a prediction that counts as near

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --back: #fff; --line: #d0d7de; --good: #d3f2d9; --even: #fdf3c8; --bad: #fbd5d0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --back: #0d1117; --line: #30363d; --good: #12431f; --even: #4a3c05; --bad: #5a1a14; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2em auto; max-width: 75em; padding: 0 1em; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3em .6em; text-align: left; vertical-align: top; }
td.number { text-align: right; white-space: nowrap; } .good { background: var(--good); } .even { background: var(--even); }
.bad { background: var(--bad); }
"""


def is_bound(entry):
    """Tells if communication binds the cell: DDP's step is much longer than computation alone."""
    return entry["ms"][entry["ddp"]] > BOUND * entry["alone_ms"]


def colour(ratio, spread, goal):
    """Even: above the goal, but not beyond the spread."""
    return "good" if ratio <= goal else "even" if spread[0] <= goal else "bad"


def summary(rows):
    """Markdown."""
    lines = ["| model | cells | committed / best pinned: median, worst | within 1.02, or not beyond the spread | committed / fastest"
             " DDP of equal accuracy: median | 1.3 times faster, of cells that communication binds |", "|---|---|---|---|---|---|"]
    models = list(dict.fromkeys(entry["name"].split(",")[0] for entry in rows))
    for model in [*models, "all"]:
        own = [entry for entry in rows if model in ("all", entry["name"].split(",")[0])]
        bound = [entry for entry in own if is_bound(entry)]
        good = [entry for entry in own if colour(entry["ratio"], entry["spread"], GOAL) == "good"]
        even = [entry for entry in own if colour(entry["ratio"], entry["spread"], GOAL) == "even"]
        lines.append(
            f"| {model} | {len(own)} | {statistics.median(entry['ratio'] for entry in own):.3f}, "
            f"{max(entry['ratio'] for entry in own):.3f} | {len(good)} + {len(even)} | "
            f"{statistics.median(entry['ddp_ratio'] for entry in own):.3f} | "
            f"{sum(entry['ddp_ratio'] <= 1 / BOUND for entry in bound)} of {len(bound)} |")
    return "\n".join(lines)


def number(text, kind=""):
    return f'<td class="number {kind}">{html.escape(text)}</td>'


def ratio_cell(ratio, spread, goal):
    return number(f"{ratio:.3f} [{spread[0]:.3f}, {spread[1]:.3f}]", colour(ratio, spread, goal))


def table_row(entry):
    predicted, share = entry["predicted"], entry["tuning_share"]
    near = "" if predicted is None else "good" if abs(predicted - 1) <= NEAR else "even"
    cells = [f"<td>{html.escape(entry['name'])}</td>", f"<td>{html.escape(entry['strategy'])}</td>",
             number(f"{entry['value']:.1f}"), ratio_cell(entry["ratio"], entry["spread"], GOAL),
             f"<td>{html.escape(entry['best'])}</td>", ratio_cell(entry["ddp_ratio"], entry["ddp_spread"], 1),
             f"<td>{html.escape(entry['ddp'])}</td>", number("yes" if is_bound(entry) else "no"),
             number("" if share is None else f"{100 * share:.1f} %"), number("" if predicted is None else f"{predicted:.3f}", near),
             number(entry["date"])]
    return f"<tr>{''.join(cells)}</tr>"


def page(rows):
    """One HTML page, without a script or another file."""
    heads = ("job", "committed", "ms", "/ best pinned", "best pinned", "/ DDP", "fastest DDP of equal accuracy",
             "communication binds", "cost of tuning, of its steps", "predicted / measured", "date")
    within = sum(colour(entry["ratio"], entry["spread"], GOAL) != "bad" for entry in rows)
    body = "\n".join(table_row(entry) for entry in sorted(rows, key=lambda entry: entry["name"]))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>gradtune: matrix of jobs</title><style>{STYLE}</style></head><body>
<h1>Committed strategies beside everything else</h1>
<p>In {within} of {len(rows)} jobs the committed step is within {GOAL} of the best pinned one, or not beyond its quartiles.
Green meets the goal, yellow misses it inside the quartiles of the turns, red beyond them. A ratio below 1 is faster.</p>
<div class="wide"><table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>
{body}
</table></div></body></html>
"""
