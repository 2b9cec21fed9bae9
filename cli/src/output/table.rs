//! Tables in the style of kubectl: upper-case headers, columns two spaces apart, no borders.

#[derive(Clone, Copy)]
enum Align {
    Left,
    Right,
}

#[derive(Default)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Adds columns of text; `headers` are separated by spaces.
    pub(crate) fn left(self, headers: &'static str) -> Self {
        self.columns(headers, Align::Left)
    }

    /// Adds columns of numbers.
    pub(crate) fn right(self, headers: &'static str) -> Self {
        self.columns(headers, Align::Right)
    }

    fn columns(mut self, headers: &'static str, align: Align) -> Self {
        let headers = headers.split(' ').map(|header| (header, align));
        self.columns.extend(headers);
        self
    }

    /// Adds a row. An empty cell is an unknown value and is printed as `-`.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        let cells = cells.into_iter();
        let cells = cells.map(|cell| {
            if cell.is_empty() {
                "-".to_owned()
            } else {
                cell
            }
        });
        self.rows.push(cells.collect());
    }

    pub(crate) fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.fold(self.columns[column].0.len(), usize::max)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let headers = self.columns.iter().map(|(header, _)| (*header).to_owned());
        let headers: Vec<String> = headers.collect();
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
        let mut table = Table::default().left("NAME").right("RPS").left("TIER");
        for row in [["web", "12.5", ""], ["a-long-name", "3", "full"]] {
            table.row(row.map(str::to_owned).to_vec());
        }
        let expect = "NAME          RPS  TIER\nweb          12.5  -\na-long-name     3  full\n";
        assert_eq!(table.render(), expect);
    }
}
