//! Draws quantities against the size of something, both on logarithmic scales: a straight line is a
//! power, whose exponent is its slope.

use std::fmt::Write as _;

use super::report::Unit;

/// One quantity.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) unit: Unit,
    /// What the sizes count.
    pub(super) across: &'static str,
    pub(super) lines: Vec<Line>,
}

/// The quantity of one controller.
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) slope: Option<f64>,
    /// Size and value.
    pub(super) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 300.0;
/// Around the axes of a panel.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 14.0;
/// Room for the last labels of the right panels, which are wider than [`RIGHT`].
const MARGIN: f64 = 12.0;
const ABOVE: f64 = 84.0;
const BELOW: f64 = 40.0;
const COLUMNS: usize = 2;
const COLOURS: [&str; 3] = ["#2f6f9f", "#4c9f70", "#c8553d"];

/// A logarithmic scale.
#[derive(Clone, Copy)]
struct Scale {
    /// Powers of ten.
    low: i32,
    high: i32,
    /// Where they are drawn.
    from: f64,
    to: f64,
}

/// Returns the picture of all panels.
pub(super) fn text(panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * COLUMNS as f64 + MARGIN, HEIGHT * rows as f64);
    let drawn = panels.iter().enumerate().map(|(number, panel)| {
        let (x, y) = (number % COLUMNS, number / COLUMNS);
        let (x, y) = (x as f64 * WIDTH, y as f64 * HEIGHT);
        format!(
            "<g transform=\"translate({x} {y})\">\n{}</g>\n",
            panel.text()
        )
    });
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">
<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>
{}</svg>
",
        drawn.collect::<String>()
    )
}

impl Panel {
    fn text(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let across = Scale::of(points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let up = Scale::of(points().map(|point| point.1), HEIGHT - BELOW, ABOVE);
        let mut text = format!(
            "<text x=\"{LEFT}\" y=\"18\" font-size=\"13\">{}</text>\n",
            self.title
        );
        // Writing to a string does not fail.
        for power in across.low..=across.high {
            let (x, label) = (across.of_power(power), 10_f64.powi(power));
            let _written = writeln!(
                text,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{ABOVE}\" y2=\"{}\" stroke=\"#dddddd\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                HEIGHT - BELOW,
                HEIGHT - BELOW + 14.0,
            );
        }
        for power in up.low..=up.high {
            let (y, label) = (up.of_power(power), self.unit.shown(10_f64.powi(power)));
            let _written = writeln!(
                text,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
            );
        }
        let _written = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 10.0,
            self.across
        );
        for (number, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let y = 34.0 + 14.0 * number as f64;
            text += &line.text(across, up, colour, y);
        }
        text
    }
}

impl Line {
    /// Returns the line, and its name with its slope at a height.
    fn text(&self, across: Scale, up: Scale, colour: &str, y: f64) -> String {
        let places = self.points.iter().map(|(size, value)| {
            let (x, y) = (across.at(*size), up.at(*value));
            format!("{x:.1},{y:.1}")
        });
        let places: Vec<String> = places.collect();
        let dots = places.iter().filter_map(|place| place.split_once(','));
        let dots: String = dots
            .map(|(x, y)| format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>"))
            .collect();
        let slope = self
            .slope
            .map_or_else(String::new, |slope| format!(": slope {slope:.2}"));
        format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>{dots}\
             <text x=\"{LEFT}\" y=\"{y}\" fill=\"{colour}\">{}{slope}</text>\n",
            places.join(" "),
            self.name,
        )
    }
}

impl Scale {
    /// Returns the scale of the powers of ten around all values.
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let powers: Vec<f64> = values
            .filter(|value| *value > 0.0)
            .map(f64::log10)
            .collect();
        let low = powers.iter().copied().fold(f64::INFINITY, f64::min);
        let high = powers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return Self {
                low: 0,
                high: 1,
                from,
                to,
            };
        }
        let low = low.floor() as i32;
        Self {
            low,
            high: (high.ceil() as i32).max(low + 1),
            from,
            to,
        }
    }

    fn of_power(self, power: i32) -> f64 {
        self.at(10_f64.powi(power))
    }

    /// Returns the position of a value. Zero and negative values are at the lower end.
    fn at(self, value: f64) -> f64 {
        let low = f64::from(self.low);
        let share = (value.log10() - low) / (f64::from(self.high) - low);
        let share = if share.is_finite() { share } else { 0.0 };
        self.from + (self.to - self.from) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten_are_equally_far_apart() {
        let scale = Scale::of([20.0, 3000.0].into_iter(), 0.0, 300.0);
        assert_eq!((scale.low, scale.high), (1, 4));
        for (value, expected) in [(10.0, 0.0), (100.0, 100.0), (10_000.0, 300.0), (0.0, 0.0)] {
            assert!((scale.at(value) - expected).abs() < 1e-9, "{value}");
        }
        let one = Scale::of([10.0].into_iter(), 0.0, 1.0);
        assert!(one.low < one.high);
        let none = Scale::of(std::iter::empty(), 0.0, 1.0);
        assert!(none.low < none.high);
    }

    #[test]
    fn picture_has_each_line_with_its_slope() {
        let panel = |title| Panel {
            title,
            unit: Unit::Seconds,
            across: "pods",
            lines: vec![Line {
                name: "policy",
                slope: Some(0.987),
                points: vec![(1000.0, 0.01), (10_000.0, 0.1)],
            }],
        };
        let text = text(&[panel("CPU"), panel("delay"), panel("memory")]);
        assert_eq!(text.matches("policy: slope 0.99").count(), 3, "{text}");
        assert_eq!(text.matches("<circle").count(), 6);
        assert_eq!(text.matches(">pods</text>").count(), 3);
        assert!(text.contains("viewBox=\"0 0 852 600\""), "{text}");
    }
}
