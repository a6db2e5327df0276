// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/page_style.h"

namespace gradtune::tuner {

std::string_view page_style() {
  return R"css(
:root { color-scheme: light dark;
  --ground: #ffffff; --card: #f4f6f8; --text: #1b2127; --muted: #4a545e; --rule: #d4dae0; --band: #e3e8ed;
  --band2: #cdd5dd;
  --chosen: #0072b2; --baseline: #c25400; --candidate: #7d8893; --former: #8a4f8c; --on-bar: #ffffff;
  --k0: #0072b2; --k1: #b87700; --k2: #009e73; --k3: #b8608f; --k4: #2b8cc4; --k5: #d55e00; --k6: #8a7a00; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #14181c; --card: #1e2429; --text: #e7ebee; --muted: #a3aeb8; --rule: #39424a; --band: #2a3239;
  --band2: #3b454e;
  --chosen: #56b4e9; --baseline: #f0a33c; --candidate: #8b96a1; --former: #c79bd0; --on-bar: #10151a;
  --k0: #56b4e9; --k1: #e69f00; --k2: #2bbd93; --k3: #dd9cc0; --k4: #3f8fd0; --k5: #ee7d3a; --k6: #d8c93a; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 12px; max-width: 980px; background: var(--ground); color: var(--text);
  font: 16px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: .4em 0 .1em; }
h2 { font-size: 1.15rem; margin: 2em 0 .2em; padding-top: .5em; border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.2em 0 .2em; }
p { margin: .4em 0; max-width: 46em; } .what { color: var(--muted); margin: 0; }
.note { color: var(--muted); font-size: .88rem; }
.answers { display: grid; gap: 10px; grid-template-columns: 1fr; margin: 14px 0; padding: 0; }
.answers div { background: var(--card); border-radius: 8px; padding: 10px 12px; }
.answers dt { font-weight: 600; } .answers dd { margin: .2em 0 0; }
bdi { unicode-bidi: isolate; }
code { font: .86em/1.4 ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; }
.scroll { overflow-x: auto; max-height: 32em; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; margin: .4em 0; }
th, td { overflow-wrap: break-word; text-align: left;
  vertical-align: top; padding: 3px 8px 3px 0; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; color: var(--muted); overflow-wrap: normal; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; overflow-wrap: normal; }
.gauge { height: 4px; margin-top: 3px; border-radius: 2px; background: var(--candidate); }
.gauge.chosen { background: var(--chosen); } .gauge.baseline { background: var(--baseline); }
details > summary { cursor: pointer; margin: .4em 0; color: var(--muted); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 0; margin: .3em 0; list-style: none;
  font-size: .88rem; }
.legend svg, svg.swatch { width: 14px; height: 14px; vertical-align: -2px; margin-right: 5px; display: inline; }
svg { display: block; width: 100%; height: auto; }
.narrow { max-width: 480px; margin: .4em auto; } .wide { display: none; margin: .4em 0; }
@media (min-width: 880px) { .narrow { display: none; } .wide { display: block; }
  .answers { grid-template-columns: 1fr 1fr; } }
@media print { .scroll { max-height: none; } }
text { fill: var(--text); font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
text.small { font-size: 11px; fill: var(--muted); } text.strong { font-weight: 600; fill: var(--text); }
text.mark-text { font-size: 9px; fill: var(--ground); font-weight: 600; }
text.bar-text { font-size: 10px; fill: var(--on-bar); }
text.on-light { fill: #10151a; } text.plain { fill: var(--text); }
.grid { stroke: var(--rule); stroke-width: 1; } .zero { stroke: var(--baseline); stroke-width: 1.5; }
.band { fill: var(--band); } .other-band { fill: var(--band2); }
.event { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 1 3; } .mark { fill: var(--muted); }
.level { stroke-width: 1.5; stroke-dasharray: 6 4; } .baseline-line { stroke: var(--baseline); }
  .chosen-line { stroke: var(--chosen); }
.dot { fill: none; stroke-width: 3; stroke-linecap: round; }
.dot.baseline { stroke: var(--baseline); } .dot.chosen { stroke: var(--chosen); }
  .dot.candidate { stroke: var(--candidate); } .dot.former { stroke: var(--former); }
.dot.excluded { stroke: var(--rule); } .dot.beyond { stroke: var(--text); stroke-width: 4; }
.fill.baseline { fill: var(--baseline); } .fill.chosen { fill: var(--chosen); }
  .fill.candidate { fill: var(--candidate); } .fill.former { fill: var(--former); }
.interval { stroke-width: 3; opacity: .55; } .interval.chosen { stroke: var(--chosen); }
  .interval.candidate { stroke: var(--candidate); } .interval.former { stroke: var(--former); }
.block { fill: var(--ground); stroke-width: 1.3; } .block.chosen { stroke: var(--chosen); }
  .block.candidate { stroke: var(--candidate); } .block.former { stroke: var(--former); }
.pair { stroke: var(--muted); stroke-width: 1.3; }
.kind0 { fill: var(--k0); } .kind1 { fill: var(--k1); } .kind2 { fill: var(--k2); } .kind3 { fill: var(--k3); }
.kind4 { fill: var(--k4); } .kind5 { fill: var(--k5); } .kind6 { fill: var(--k6); } .lane { fill: var(--muted); }
.op-compute { fill: var(--band2); } .op-update { fill: var(--muted); } .op-encode { fill: var(--k1); }
.op-decode { fill: var(--k2); } .op-pass { fill: var(--k3); } .op-collective { fill: var(--k0); }
.step-ground { fill: var(--muted); opacity: .12; } .verdict { font-size: 1.1rem; font-weight: 600; }
.answers .figure { font-size: 1.7rem; color: var(--baseline); } .answers .figure.chosen { color: var(--chosen); }
)css";
}

}  // namespace gradtune::tuner
