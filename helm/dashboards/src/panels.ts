// The panels of all dashboards: one function for each form, so that they look alike.

import * as common from "@grafana/grafana-foundation-sdk/common";
import * as dashboard from "@grafana/grafana-foundation-sdk/dashboard";
import * as gauge from "@grafana/grafana-foundation-sdk/gauge";
import * as prometheus from "@grafana/grafana-foundation-sdk/prometheus";
import * as stat from "@grafana/grafana-foundation-sdk/stat";
import * as table from "@grafana/grafana-foundation-sdk/table";
import * as text from "@grafana/grafana-foundation-sdk/text";
import * as timeseries from "@grafana/grafana-foundation-sdk/timeseries";
import * as units from "@grafana/grafana-foundation-sdk/units";

export const DATA_SOURCE = { type: "prometheus", uid: "${datasource}" };

export const UNITS = {
    share: units.PercentUnit,
    rate: units.RequestsPerSecond,
    milliseconds: units.Milliseconds,
    seconds: units.Seconds,
    count: units.Short,
    perSecond: units.OpsPerSecond,
    bytes: units.BytesIEC,
    bytesPerSecond: units.BytesPerSecondIEC,
    boolean: units.BoolYesNo,
};

// What a panel shows and how it is read; a dashboard has 24 columns, and `width` counts them.
interface Shape {
    title: string;
    description: string;
    unit: string;
    width: number;
}

// A query and the name of its series.
export type Query = [expression: string, legend: string];

// Ascending; a number is coloured from these values on.
export interface Limits {
    warning: number;
    critical: number;
    // Whether high or low values are bad.
    bad: "high" | "low";
}

// A column of a table: an instant query, whose value has this unit.
export interface Column {
    title: string;
    expression: string;
    unit: string;
    limits?: Limits;
}

const GREEN = "green";
const ORANGE = "orange";
const RED = "red";

function thresholds({ warning, critical, bad }: Limits): dashboard.ThresholdsConfigBuilder {
    const steps =
        bad === "high"
            ? [
                  { value: null, color: GREEN },
                  { value: warning, color: ORANGE },
                  { value: critical, color: RED },
              ]
            : [
                  { value: null, color: RED },
                  { value: critical, color: ORANGE },
                  { value: warning, color: GREEN },
              ];
    return new dashboard.ThresholdsConfigBuilder().mode(dashboard.ThresholdsMode.Absolute).steps(steps);
}

const NEUTRAL = new dashboard.ThresholdsConfigBuilder()
    .mode(dashboard.ThresholdsMode.Absolute)
    .steps([{ value: null, color: "blue" }]);

function query([expression, legend]: Query, refId: string): prometheus.DataqueryBuilder {
    return new prometheus.DataqueryBuilder().expr(expression).legendFormat(legend).range().refId(refId);
}

// One number, with its recent course in the background.
export function number(shape: Shape, expression: string, limits?: Limits): stat.PanelBuilder {
    return new stat.PanelBuilder()
        .title(shape.title)
        .description(shape.description)
        .datasource(DATA_SOURCE)
        .unit(shape.unit)
        .span(shape.width)
        .height(4)
        .colorMode(common.BigValueColorMode.Value)
        .graphMode(common.BigValueGraphMode.Area)
        .reduceOptions(new common.ReduceDataOptionsBuilder().calcs(["lastNotNull"]))
        .thresholds(limits === undefined ? NEUTRAL : thresholds(limits))
        .withTarget(query([expression, shape.title], letter(0)));
}

// A share from 0 to 1, on a scale.
export function share(shape: Omit<Shape, "unit">, expression: string, limits: Limits): gauge.PanelBuilder {
    return new gauge.PanelBuilder()
        .title(shape.title)
        .description(shape.description)
        .datasource(DATA_SOURCE)
        .unit(UNITS.share)
        .min(0)
        .max(1)
        .span(shape.width)
        .height(4)
        .reduceOptions(new common.ReduceDataOptionsBuilder().calcs(["lastNotNull"]))
        .thresholds(thresholds(limits))
        .withTarget(query([expression, shape.title], letter(0)));
}

// The course of one or more series.
export function course(shape: Shape, ...queries: Query[]): timeseries.PanelBuilder {
    const panel = new timeseries.PanelBuilder()
        .title(shape.title)
        .description(shape.description)
        .datasource(DATA_SOURCE)
        .unit(shape.unit)
        .min(0)
        .span(shape.width)
        .height(7)
        .lineWidth(1)
        .fillOpacity(10)
        .showPoints(common.VisibilityMode.Never)
        .legend(
            new common.VizLegendOptionsBuilder()
                .displayMode(common.LegendDisplayMode.List)
                .placement(common.LegendPlacement.Bottom)
                .showLegend(true),
        )
        .tooltip(
            new common.VizTooltipOptionsBuilder()
                .mode(common.TooltipDisplayMode.Multi)
                .sort(common.SortOrder.Descending),
        );
    queries.forEach((each, index) => panel.withTarget(query(each, letter(index))));
    return panel;
}

// A row for each value of `keys`, with the columns' current values; labels in `hidden` only keep
// rows apart. `link` is followed from the last key.
export function list(
    shape: Omit<Shape, "unit">,
    keys: Record<string, string>,
    hidden: string[],
    columns: Column[],
    link?: string,
): table.PanelBuilder {
    const panel = new table.PanelBuilder()
        .title(shape.title)
        .description(shape.description)
        .datasource(DATA_SOURCE)
        .unit(UNITS.count)
        .span(shape.width)
        .height(9)
        .filterable(true);
    const renamed: Record<string, string> = { ...keys };
    columns.forEach((column, index) => {
        const id = letter(index);
        // Grafana numbers the columns only if there are several queries.
        renamed[columns.length > 1 ? `Value #${id}` : "Value"] = column.title;
        panel.withTarget(
            new prometheus.DataqueryBuilder()
                .expr(column.expression)
                .format(prometheus.PromQueryFormat.Table)
                .instant()
                .refId(id),
        );
        panel.overrideByName(column.title, properties(column));
    });
    if (link !== undefined) {
        const last = Object.values(keys).at(-1) ?? "";
        panel.overrideByName(last, [{ id: "links", value: [{ title: "Open its dashboard", url: link }] }]);
    }
    const excludeByName = Object.fromEntries(["Time", ...hidden].map((name) => [name, true]));
    const indexByName = Object.fromEntries(Object.keys(renamed).map((name, index) => [name, index]));
    return panel
        .withTransformation({ id: "merge", options: {} })
        .withTransformation({
            id: "organize",
            options: { excludeByName, indexByName, renameByName: renamed },
        });
}

function properties(column: Column): dashboard.DynamicConfigValue[] {
    const shown: dashboard.DynamicConfigValue[] = [{ id: "unit", value: column.unit }];
    if (column.limits !== undefined) {
        shown.push(
            { id: "thresholds", value: thresholds(column.limits).build() },
            { id: "custom.cellOptions", value: { type: "color-text" } },
        );
    }
    return shown;
}

// The purpose of the dashboard, and its normal values.
export function note(title: string, content: string): text.PanelBuilder {
    return new text.PanelBuilder()
        .title(title)
        .description("What this dashboard shows, and what is normal.")
        .mode(text.TextMode.Markdown)
        .content(content)
        .span(24)
        .height(3);
}

function letter(index: number): string {
    return String.fromCharCode("A".charCodeAt(0) + index);
}
