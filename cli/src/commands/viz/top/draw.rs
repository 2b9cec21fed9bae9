//! Draws the view: a line about the tap, the table, and a line about the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};

use super::live::{Row, RowKey};
use super::view::{Column, View};

/// Columns between two cells.
const SPACING: u16 = 2;

/// The width that a text keeps when the terminal is narrow.
const MIN_TEXT_WIDTH: u16 = 12;

const KEYS: &str =
    "q quit  s/S sort  r reverse  / filter  Esc all  p pause  ←→ columns  ↑↓ PgUp PgDn rows";

pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let [top, middle, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Paragraph::new(heading(view)).style(bold), top);
    // One row is the header.
    let height = usize::from(middle.height.saturating_sub(1));
    let rows = &view.rows()[..view.rows().len().min(height)];
    frame.render_widget(table(view, rows, middle.width), middle);
    let dim = Style::new().add_modifier(Modifier::DIM);
    frame.render_widget(Paragraph::new(footer(view)).style(dim), bottom);
}

fn heading(view: &View) -> String {
    let requests = view.completed();
    let state = if view.is_paused() { " (paused)" } else { "" };
    let mut heading = format!("{}: {requests} requests{state}", view.title());
    let (filter, is_edited) = view.filter();
    if !filter.is_empty() && !is_edited {
        heading += &format!(", {} rows with {filter:?}", view.row_count());
    }
    heading
}

fn footer(view: &View) -> String {
    match view.filter() {
        (filter, true) => format!("filter: {filter}_   Enter keeps it, Esc shows all rows"),
        (_, false) if view.row_count() == 0 && view.completed() == 0 => {
            format!("waiting for requests    {KEYS}")
        }
        _ => KEYS.to_owned(),
    }
}

fn table<'a>(view: &View, rows: &[(RowKey, Row)], width: u16) -> Table<'a> {
    let columns = view.columns();
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|(key, row)| columns.iter().map(|column| column.cell(key, row)).collect())
        .collect();
    let headers: Vec<String> = columns.iter().map(|column| header(*column, view)).collect();
    let widths = widths(columns, &headers, &cells, width);
    let table_rows = rows.iter().zip(cells).map(|((_, row), cells)| {
        let cells = columns.iter().zip(cells);
        TableRow::new(cells.map(|(column, text)| cell(*column, text, row)))
    });
    let table_rows: Vec<TableRow<'a>> = table_rows.collect();
    let header = columns.iter().zip(headers);
    let header = TableRow::new(header.map(|(column, text)| aligned(*column, text)));
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    Table::new(table_rows, widths.into_iter().map(Constraint::Length))
        .header(header.style(reversed))
        .column_spacing(SPACING)
}

/// Returns the header of a column, with the direction of the order that it decides.
fn header(column: Column, view: &View) -> String {
    match view.sort() {
        (sort, false) if sort == column => format!("{}▼", column.as_str()),
        (sort, true) if sort == column => format!("{}▲", column.as_str()),
        _ => column.as_str().to_owned(),
    }
}

fn cell<'a>(column: Column, text: String, row: &Row) -> Cell<'a> {
    let cell = aligned(column, text);
    // The number says the same without colour.
    if column == Column::Success && row.successes < row.count {
        return cell.style(Style::new().fg(Color::Red));
    }
    cell
}

fn aligned<'a>(column: Column, text: String) -> Cell<'a> {
    let line = Line::from(text);
    let line = if column.is_number() {
        line.right_aligned()
    } else {
        line
    };
    Cell::new(Text::from(line))
}

/// Returns the widths of the columns that fit. All columns are as wide as their cells if they fit;
/// else the texts are cut, the longest first. Columns that still do not fit are left out, and are
/// reached by scrolling.
fn widths(
    columns: &[Column],
    headers: &[String],
    rows: &[Vec<String>],
    available: u16,
) -> Vec<u16> {
    let width = |text: &str| u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
    let mut widths: Vec<u16> = (0..columns.len())
        .map(|at| {
            let cells = rows.iter().map(|cells| width(&cells[at]));
            cells.fold(width(&headers[at]), u16::max)
        })
        .collect();
    while total_width(&widths) > usize::from(available) {
        let texts = (0..columns.len()).filter(|at| columns[*at].is_text());
        match texts.max_by_key(|at| widths[*at]) {
            Some(at) if widths[at] > MIN_TEXT_WIDTH => widths[at] -= 1,
            _ => return fitting(widths, available),
        }
    }
    widths
}

/// Returns the first columns that fit, at least one.
fn fitting(mut widths: Vec<u16>, available: u16) -> Vec<u16> {
    while widths.len() > 1 && total_width(&widths) > usize::from(available) {
        widths.pop();
    }
    widths
}

fn total_width(widths: &[u16]) -> usize {
    let spacing = usize::from(SPACING) * widths.len().saturating_sub(1);
    let total: usize = widths.iter().map(|width| usize::from(*width)).sum();
    total + spacing
}

#[cfg(test)]
mod tests;
