// What all dashboards have in common: their variables, links and settings.

import * as cog from "@grafana/grafana-foundation-sdk/cog";
import * as dashboard from "@grafana/grafana-foundation-sdk/dashboard";

import { DATA_SOURCE, note } from "./panels.js";
import { all, JOB, type Matchers } from "./promql.js";

type Panel = cog.Builder<dashboard.Panel>;

// A heading and the panels below it.
export type Section = [title: string, panels: Panel[]];

export interface Board {
    // Also the name of the file, and part of links to the dashboard.
    uid: string;
    title: string;
    description: string;
    // The normal values, in Markdown.
    normal: string;
    variables: dashboard.QueryVariableBuilder[];
    sections: Section[];
}

export const TAG = "mesh";

// A variable with the values of a label; one is selected.
export function one(name: string, label: string, query: string): dashboard.QueryVariableBuilder {
    return new dashboard.QueryVariableBuilder(name)
        .label(label)
        .datasource(DATA_SOURCE)
        .query(query)
        .refresh(dashboard.VariableRefresh.OnTimeRangeChanged)
        .sort(dashboard.VariableSort.AlphabeticalCaseInsensitiveAsc);
}

// A variable with the values of a label; at first all are selected.
export function several(name: string, label: string, query: string): dashboard.QueryVariableBuilder {
    return one(name, label, query).multi(true).includeAll(true).allValue(".+").current({
        selected: true,
        text: ["All"],
        value: ["$__all"],
    });
}

// Prometheus' scrape job of the processes that export one of the metrics. Its name depends on what
// scrapes: the chart's Prometheus, or an operator with PodMonitors.
export function scrapeJob(...metrics: string[]): dashboard.QueryVariableBuilder {
    return several("job", "job", `label_values({${exports(metrics)}}, job)`);
}

export function instance(...metrics: string[]): dashboard.QueryVariableBuilder {
    return several("instance", "instance", `label_values({${all(exports(metrics), JOB)}}, instance)`);
}

function exports(metrics: string[]): Matchers {
    return `__name__=~"${metrics.join("|")}"`;
}

export function build(board: Board): dashboard.Dashboard {
    const builder = new dashboard.DashboardBuilder(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .readonly()
        .refresh("30s")
        .time({ from: "now-1h", to: "now" })
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.Crosshair)
        .link(
            new dashboard.DashboardLinkBuilder("Mesh")
                .type(dashboard.DashboardLinkType.Dashboards)
                .tags([TAG])
                .asDropdown(true)
                .includeVars(true)
                .keepTime(true),
        )
        .withVariable(new dashboard.DatasourceVariableBuilder("datasource").label("Data Source").type("prometheus"));
    board.variables.forEach((variable) => builder.withVariable(variable));
    builder.withPanel(note("About this dashboard", board.normal));
    for (const [title, panels] of board.sections) {
        builder.withRow(new dashboard.RowBuilder(title));
        panels.forEach((panel) => builder.withPanel(panel));
    }
    return numbered(builder.build());
}

// Numbers the panels, which links to a panel name. The builder leaves that to Grafana, and places
// links between dashboards in a menu that only the newest Grafana has.
function numbered(built: dashboard.Dashboard): dashboard.Dashboard {
    const links = built.links?.map(({ placement: _menu, ...link }) => link);
    const panels = built.panels?.map((panel, index) => ({ ...panel, id: index + 1 }));
    return { ...built, links, panels };
}
