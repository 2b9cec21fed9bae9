//! Draws the chart: for each goal relative to another system, the ratio of mesh-proxy to that
//! system, its interval, and the goal.

use std::fmt::Write as _;

use super::{Report, describe_goal};
use crate::benchmark::metric::{SystemUnderTest, shown};
use crate::benchmark::row::{GoalResult, GoalStatus};
use crate::benchmark::workload::Limit;

const LABELS: f64 = 470.0;
const BARS: f64 = 420.0;
const NUMBERS: f64 = 70.0;
const LINE: f64 = 22.0;
const TOP: f64 = 44.0;
/// The ratio at the right edge. Longer bars are cut there; their number is printed next to them.
const MOST: f64 = 2.0;

pub(super) fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    for row in report.rows() {
        for result in row.goal_results() {
            if let Limit::AtMost(limit, sut) | Limit::AtLeast(limit, sut) = result.goal.limit {
                let label = format!(
                    "{}: {}",
                    row.workload.name,
                    describe_goal(result.goal, row.workload.unit)
                );
                lines.push(line(lines.len(), &label, &result, limit, sut));
            }
        }
    }
    let (width, height) = (
        LABELS + BARS + NUMBERS,
        TOP + LINE * lines.len() as f64 + 10.0,
    );
    let one = LABELS + BARS / MOST;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">
<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>
<text x=\"8\" y=\"18\" font-size=\"14\">mesh-proxy relative to the other system: bar with 95 % interval; the vertical mark is the goal</text>
<text x=\"{LABELS}\" y=\"36\" fill=\"#666666\">0</text>
<text x=\"{one}\" y=\"36\" fill=\"#666666\" text-anchor=\"middle\">1</text>
<line x1=\"{one}\" x2=\"{one}\" y1=\"{TOP}\" y2=\"{height}\" stroke=\"#bbbbbb\"/>
{}</svg>
",
        lines.concat()
    )
}

fn line(
    number: usize,
    label: &str,
    result: &GoalResult,
    limit: f64,
    sut: SystemUnderTest,
) -> String {
    let y = TOP + LINE * number as f64;
    let at = |ratio: f64| LABELS + BARS * ratio.clamp(0.0, MOST) / MOST;
    let estimate = result.estimate;
    let (bar, low, high, goal) = (
        at(estimate.median) - LABELS,
        at(estimate.low),
        at(estimate.high),
        at(limit),
    );
    let colour = match result.status {
        GoalStatus::Met => "#4c9f70",
        GoalStatus::Undecided => "#d9a441",
        GoalStatus::Missed => "#c8553d",
    };
    let (middle, base, bottom) = (y + 9.0, y + 13.0, y + 18.0);
    let mut text = String::new();
    // Writing to a string does not fail.
    let _written = writeln!(
        text,
        "<g><title>{label}, {sut}</title>\
         <text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{label}</text>\
         <rect x=\"{LABELS}\" y=\"{y}\" width=\"{bar:.1}\" height=\"18\" fill=\"{colour}\"/>\
         <line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#222222\"/>\
         <line x1=\"{goal:.1}\" x2=\"{goal:.1}\" y1=\"{y}\" y2=\"{bottom}\" stroke=\"#222222\" stroke-width=\"3\"/>\
         <text x=\"{}\" y=\"{base}\">{}</text></g>",
        LABELS - 8.0,
        LABELS + BARS + 8.0,
        shown(estimate.median),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::{metric::Metric, statistics::Estimate, workload::Goal};

    #[test]
    fn bar_length_is_proportional_to_ratio() {
        let result = |median| GoalResult {
            goal: Goal {
                metric: Metric::CpuOut,
                limit: Limit::AtMost(0.5, SystemUnderTest::Envoy),
            },
            estimate: Estimate {
                median,
                low: median,
                high: median,
            },
            status: GoalStatus::Met,
        };
        let half = line(0, "x", &result(1.0), 0.5, SystemUnderTest::Envoy);
        assert!(
            half.contains(&format!("width=\"{:.1}\"", BARS / MOST)),
            "{half}"
        );
        let beyond = line(0, "x", &result(9.0), 0.5, SystemUnderTest::Envoy);
        assert!(beyond.contains(&format!("width=\"{BARS:.1}\"")), "{beyond}");
        assert!(beyond.contains(">9.00<"), "{beyond}");
    }
}
