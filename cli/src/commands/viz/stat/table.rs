//! The rows as tables, one for each kind.

use super::super::cells::{REQUESTS, request_cells};
use crate::clients::metrics_api::StatRow;
use crate::output::table::Table;
use crate::output::{figures, printable};
use crate::resource::ResourceKind;

#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) with_namespace: bool,
    /// With the bytes of connections.
    pub(super) is_wide: bool,
}

/// The columns of one kind's table.
struct Columns {
    with_namespace: bool,
    status: bool,
    /// Whether a ServiceProfile distributes the requests of a Service.
    split: bool,
    server: bool,
    meshed: bool,
    unauthorized: bool,
    connections: bool,
    bytes: bool,
}

/// Renders a table for each kind, in the order of their first rows. If there are several, each name
/// has its kind as a prefix.
pub(super) fn render(mut rows: Vec<StatRow>, layout: Layout) -> String {
    let mut kinds: Vec<String> = Vec::new();
    for row in &rows {
        if !kinds.contains(&row.kind) {
            kinds.push(row.kind.clone());
        }
    }
    rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let tables = kinds.iter().map(|kind| {
        let of_kind = rows.iter().filter(|row| row.kind == *kind);
        table(kind, &of_kind.collect::<Vec<_>>(), layout, kinds.len() > 1)
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// Returns the meshed pods and all pods of an object that has pods.
pub(super) fn meshed(row: &StatRow) -> Option<String> {
    let has_pods = ResourceKind::parse(&row.kind).is_some_and(ResourceKind::has_pods);
    has_pods.then(|| format!("{}/{}", row.meshed, row.running))
}

/// Returns whether connections are counted for a kind.
pub(super) fn has_connections(kind: &str) -> bool {
    !matches!(
        ResourceKind::parse(kind),
        Some(
            ResourceKind::Authority
                | ResourceKind::AuthorizationPolicy
                | ResourceKind::HttpRoute
                | ResourceKind::ServerAuthorization
        )
    )
}

fn table(kind: &str, rows: &[&StatRow], layout: Layout, with_kind: bool) -> String {
    let columns = Columns::new(kind, rows, layout);
    let mut table = columns.table();
    for row in rows {
        table.row(columns.cells(row, with_kind));
    }
    table.render()
}

impl Columns {
    fn new(kind: &str, rows: &[&StatRow], layout: Layout) -> Self {
        let kind_of = ResourceKind::parse(kind);
        let is_policy = kind_of.is_some_and(ResourceKind::is_policy);
        let connections = has_connections(kind);
        Self {
            with_namespace: layout.with_namespace && kind_of != Some(ResourceKind::Namespace),
            status: kind_of == Some(ResourceKind::Pod),
            split: rows.iter().any(|row| row.split.is_some()),
            server: is_policy && kind_of != Some(ResourceKind::Server),
            meshed: kind_of.is_some_and(ResourceKind::has_pods),
            unauthorized: matches!(
                kind_of,
                Some(ResourceKind::Server | ResourceKind::HttpRoute)
            ),
            connections,
            bytes: connections && layout.is_wide,
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::default();
        if self.with_namespace {
            table = table.left("NAMESPACE");
        }
        table = table.left("NAME");
        let texts = [
            (self.status, "STATUS"),
            (self.split, "LEAF"),
            (self.server, "SERVER"),
        ];
        for (_, header) in texts.into_iter().filter(|(shown, _)| *shown) {
            table = table.left(header);
        }
        let numbers = [
            (self.split, "WEIGHT"),
            (self.meshed, "MESHED"),
            (self.unauthorized, "UNAUTHORIZED"),
            (true, REQUESTS),
            (self.connections, "TCP_CONN"),
            (self.bytes, "READ_BYTES/SEC WRITE_BYTES/SEC"),
        ];
        for (_, header) in numbers.into_iter().filter(|(shown, _)| *shown) {
            table = table.right(header);
        }
        table
    }

    fn cells(&self, row: &StatRow, with_kind: bool) -> Vec<String> {
        let mut cells = Vec::new();
        let mut add = |shown: bool, cell: String| {
            if shown {
                cells.push(cell);
            }
        };
        add(self.with_namespace, row.namespace.clone());
        let kind = ResourceKind::short_of(&row.kind);
        // An authority is what clients sent.
        let name = printable(&row.name);
        add(with_kind, format!("{kind}/{name}"));
        add(!with_kind, name);
        add(self.status, row.status.clone());
        let split = row.split.as_ref();
        add(
            self.split,
            split.map_or(String::new(), |it| it.leaf.clone()),
        );
        let server = row.server.as_ref();
        add(
            self.server,
            server.map_or(String::new(), |it| it.name.clone()),
        );
        add(
            self.split,
            split.map_or(String::new(), |it| it.weight.clone()),
        );
        add(self.meshed, meshed(row).unwrap_or_default());
        add(self.unauthorized, figures::rate(row.unauthorized));
        for cell in request_cells(row.requests) {
            add(true, cell);
        }
        let tcp = row.tcp;
        add(
            self.connections,
            figures::number(tcp.map(|it| it.open_connections)),
        );
        add(self.bytes, figures::rate(tcp.map(|it| it.read_bytes_rate)));
        add(self.bytes, figures::rate(tcp.map(|it| it.write_bytes_rate)));
        cells
    }
}
