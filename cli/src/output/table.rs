//! Tables in the style of kubectl: upper-case headers, columns two spaces apart, no borders.

/// The alignment of a column: left for text, right for numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. An empty cell is an unknown value and is printed as `-`.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(
            cells
                .into_iter()
                .map(|cell| {
                    if cell.is_empty() {
                        "-".to_owned()
                    } else {
                        cell
                    }
                })
                .collect(),
        );
    }

    pub(crate) fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells
                .chain([self.columns[column].0.len()])
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let headers: Vec<String> = self
            .columns
            .iter()
            .map(|(header, _)| (*header).to_owned())
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&headers).chain(&self.rows) {
            let cells =
                row.iter()
                    .zip(&self.columns)
                    .zip(&widths)
                    .map(|((cell, (_, align)), width)| match align {
                        Align::Left => format!("{cell:<width$}"),
                        Align::Right => format!("{cell:>width$}"),
                    });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_cells_are_dashes() {
        let mut table = Table::new(&[
            ("NAME", Align::Left),
            ("RPS", Align::Right),
            ("TIER", Align::Left),
        ]);
        table.row(vec!["web".to_owned(), "12.5".to_owned(), String::new()]);
        table.row(vec![
            "a-long-name".to_owned(),
            "3".to_owned(),
            "full".to_owned(),
        ]);
        let expect = "NAME          RPS  TIER\nweb          12.5  -\na-long-name     3  full\n";
        assert_eq!(table.render(), expect);
    }
}
