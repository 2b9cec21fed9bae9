//! The output formats of the tables that have further columns.

use clap::ValueEnum;

/// The output format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TableFormat {
    Table,
    /// With further columns
    Wide,
    Json,
}
