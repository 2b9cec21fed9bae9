//! What the table shows: order, filter and scrolling, and the keys that change them.

use std::cmp::Ordering;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::live::{Grouping, LiveRequests, Row, RowKey};
use crate::output::figures;

pub(super) struct View {
    /// The target of the tap.
    title: String,
    columns: Vec<Column>,
    sort: Column,
    is_reversed: bool,
    /// A part of the text of a row, in lower case.
    filter: String,
    is_filter_edited: bool,
    is_paused: bool,
    first_row: usize,
    first_column: usize,
    /// The rows that the filter lets through, in their order.
    rows: Vec<(RowKey, Row)>,
    completed: u64,
}

mesh_core::names! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Column {
        Proxy = "PROXY",
        Source = "SOURCE",
        Destination = "DESTINATION",
        Method = "METHOD",
        Path = "PATH",
        Route = "ROUTE",
        Count = "COUNT",
        Best = "BEST",
        Worst = "WORST",
        Last = "LAST",
        Success = "SUCCESS",
    }
}

/// What a key brings about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    Redraw,
}

/// Rows that PgUp and PgDn scroll by.
const PAGE: usize = 10;

/// The length of a filter.
const MAX_FILTER: usize = 60;

impl View {
    pub(super) fn new(title: &str, grouping: Grouping) -> Self {
        let mut columns = vec![Column::Proxy, Column::Source, Column::Destination];
        columns.push(Column::Method);
        columns.push(if grouping.by_route {
            Column::Route
        } else {
            Column::Path
        });
        columns.extend([Column::Count, Column::Best, Column::Worst]);
        columns.extend([Column::Last, Column::Success]);
        if grouping.hides_sources {
            columns.retain(|column| *column != Column::Source);
        }
        Self {
            title: title.to_owned(),
            columns,
            sort: Column::Count,
            is_reversed: false,
            filter: String::new(),
            is_filter_edited: false,
            is_paused: false,
            first_row: 0,
            first_column: 0,
            rows: Vec::new(),
            completed: 0,
        }
    }

    /// Takes the current rows, unless the view is paused.
    pub(super) fn update(&mut self, live: &LiveRequests) {
        if self.is_paused {
            return;
        }
        self.completed = live.completed();
        let rows = live.rows().filter(|(key, _)| self.matches(key));
        self.rows = rows.map(|(key, row)| (key.clone(), row.clone())).collect();
        let (sort, is_reversed) = (self.sort, self.is_reversed);
        self.rows.sort_by(|a, b| {
            let order = sort.order(a, b);
            let order = if is_reversed { order.reverse() } else { order };
            // Equal rows do not change places between frames.
            order.then_with(|| a.0.cmp(&b.0))
        });
        self.first_row = self.first_row.min(self.rows.len().saturating_sub(1));
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Effect {
        if key.kind == KeyEventKind::Release {
            return Effect::Redraw;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return Effect::Quit,
            _ if self.is_filter_edited => self.edit_filter(key.code),
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('s') => self.sort = self.column_after(self.sort, 1),
            KeyCode::Char('S') => {
                self.sort = self.column_after(self.sort, self.columns.len() - 1);
            }
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_filter_edited = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up | KeyCode::Char('k') => self.scroll_to(self.first_row.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.scroll_to(self.first_row + 1),
            KeyCode::PageUp => self.scroll_to(self.first_row.saturating_sub(PAGE)),
            KeyCode::PageDown => self.scroll_to(self.first_row + PAGE),
            KeyCode::Home => self.scroll_to(0),
            KeyCode::End => self.scroll_to(usize::MAX),
            KeyCode::Left | KeyCode::Char('a') => {
                self.first_column = self.first_column.saturating_sub(1);
            }
            KeyCode::Right | KeyCode::Char('d') => {
                self.first_column = (self.first_column + 1).min(self.columns.len() - 1);
            }
            _ => {}
        }
        Effect::Redraw
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns the filter, and whether it is being edited.
    pub(super) fn filter(&self) -> (&str, bool) {
        (&self.filter, self.is_filter_edited)
    }

    /// Returns the column of the order, and whether it is reversed.
    pub(super) fn sort(&self) -> (Column, bool) {
        (self.sort, self.is_reversed)
    }

    /// Returns the columns from the first visible one.
    pub(super) fn columns(&self) -> &[Column] {
        &self.columns[self.first_column..]
    }

    /// Returns the rows from the first visible one.
    pub(super) fn rows(&self) -> &[(RowKey, Row)] {
        &self.rows[self.first_row..]
    }

    /// Returns the number of rows that the filter lets through.
    pub(super) fn row_count(&self) -> usize {
        self.rows.len()
    }

    fn edit_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) if self.filter.chars().count() < MAX_FILTER => {
                self.filter.extend(c.to_lowercase());
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.is_filter_edited = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_filter_edited = false;
            }
            _ => {}
        }
    }

    fn scroll_to(&mut self, row: usize) {
        self.first_row = row.min(self.rows.len().saturating_sub(1));
    }

    fn column_after(&self, column: Column, distance: usize) -> Column {
        let at = self.columns.iter().position(|it| *it == column);
        self.columns[(at.unwrap_or(0) + distance) % self.columns.len()]
    }

    fn matches(&self, key: &RowKey) -> bool {
        let texts = [&key.source, &key.destination, &key.method, &key.path];
        let mut texts = texts.into_iter().map(|text| text.to_lowercase());
        self.filter.is_empty() || texts.any(|text| text.contains(&self.filter))
    }
}

impl Column {
    /// Returns whether its cells are texts that may be cut, not numbers.
    pub(super) fn is_text(self) -> bool {
        matches!(
            self,
            Self::Source | Self::Destination | Self::Path | Self::Route
        )
    }

    pub(super) fn is_number(self) -> bool {
        matches!(
            self,
            Self::Count | Self::Best | Self::Worst | Self::Last | Self::Success
        )
    }

    pub(super) fn cell(self, key: &RowKey, row: &Row) -> String {
        match self {
            Self::Proxy => key.proxy.to_owned(),
            Self::Source => key.source.clone(),
            Self::Destination => key.destination.clone(),
            Self::Method => key.method.clone(),
            Self::Path | Self::Route => key.path.clone(),
            Self::Count => row.count.to_string(),
            Self::Best => latency(row.best),
            Self::Worst => latency(row.worst),
            Self::Last => latency(row.last),
            Self::Success => figures::percent(Some(row.success_rate())),
        }
    }

    /// Orders texts from a to z, and numbers so that what needs attention comes first: most
    /// requests, highest latency, lowest success rate.
    fn order(self, (a_key, a): &(RowKey, Row), (b_key, b): &(RowKey, Row)) -> Ordering {
        match self {
            Self::Proxy => a_key.proxy.cmp(b_key.proxy),
            Self::Source => a_key.source.cmp(&b_key.source),
            Self::Destination => a_key.destination.cmp(&b_key.destination),
            Self::Method => a_key.method.cmp(&b_key.method),
            Self::Path | Self::Route => a_key.path.cmp(&b_key.path),
            Self::Count => b.count.cmp(&a.count),
            Self::Best => b.best.cmp(&a.best),
            Self::Worst => b.worst.cmp(&a.worst),
            Self::Last => b.last.cmp(&a.last),
            Self::Success => a.success_rate().total_cmp(&b.success_rate()),
        }
    }
}

/// Shows a latency in at most seven characters, except for days.
fn latency(latency: Duration) -> String {
    let micros = latency.as_micros();
    match micros {
        0..1_000 => format!("{micros}µs"),
        1_000..10_000_000 => format!("{}ms", micros / 1_000),
        _ => format!("{}s", latency.as_secs()),
    }
}

#[cfg(test)]
mod tests;
