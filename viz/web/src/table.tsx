// A table that sorts by its columns and filters by text.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

export interface Column<T> {
  name: string;
  /** The content. */
  cell: (row: T) => ComponentChildren;
  /** The key for sorting; a column without it cannot be sorted by. */
  value?: (row: T) => number | string | undefined;
  numeric?: boolean;
  /** Left out where there is little room. */
  optional?: boolean;
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  id: (row: T) => string;
  /** The text that a filter is compared with; without it there is no filter. */
  text?: (row: T) => string;
  /** The name of the column, and whether large values come first. */
  sorted?: [string, boolean];
  empty: string;
}

/** More rows are not shown at once, because a browser takes long to lay them out. */
const MAX_ROWS = 500;

export function Table<T>({ label, columns, rows, id, text, sorted, empty }: Props<T>) {
  const [[by, descending], sort] = useState<[string, boolean]>(sorted ?? [columns[0]?.name ?? "", false]);
  const [filter, setFilter] = useState("");
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = text ? rows.filter((row) => words.every((word) => text(row).toLowerCase().includes(word))) : rows;
  const value = columns.find((column) => column.name === by)?.value;
  const ordered = value ? [...matching].sort((a, b) => compare(value(a), value(b), descending)) : matching;
  const shown = ordered.slice(0, MAX_ROWS);
  return (
    <div class="table">
      {text && rows.length > 8 && (
        <input type="search" class="filter" placeholder="Filter" aria-label={`Filter ${label}`} value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)} />
      )}
      <div class="scroll" tabIndex={0} role="group" aria-label={label}>
        <table>
          <caption class="hidden">{label}</caption>
          <thead>
            <tr>
              {columns.map((column) => (
                <Head key={column.name} column={column} by={by} descending={descending}
                  onSort={(next) => sort([column.name, next])} />
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((row) => (
              <tr key={id(row)}>
                {columns.map((column, index) => {
                  const Cell = index === 0 ? "th" : "td";
                  return (
                    <Cell key={column.name} class={style(column)} {...(index === 0 && { scope: "row" })}>
                      {column.cell(row)}
                    </Cell>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {shown.length === 0 && <p class="empty">{rows.length ? "No row matches the filter." : empty}</p>}
      {ordered.length > MAX_ROWS && (
        <p class="empty">
          {MAX_ROWS} of {ordered.length} rows are shown; filter to see others.
        </p>
      )}
    </div>
  );
}

interface HeadProps<T> {
  column: Column<T>;
  by: string;
  descending: boolean;
  onSort: (descending: boolean) => void;
}

function Head<T>({ column, by, descending, onSort }: HeadProps<T>) {
  const current = by === column.name;
  if (!column.value) {
    return <th scope="col" class={style(column)}>{column.name}</th>;
  }
  const next = current ? !descending : Boolean(column.numeric);
  return (
    <th scope="col" class={style(column)} aria-sort={current ? (descending ? "descending" : "ascending") : undefined}>
      <button type="button" onClick={() => onSort(next)}>
        {column.name}
        <span class="arrow" aria-hidden="true">{current ? (descending ? "▾" : "▴") : "\u00a0"}</span>
      </button>
    </th>
  );
}

function style<T>(column: Column<T>): string {
  return `${column.numeric ? "number" : ""} ${column.optional ? "optional" : ""}`.trim();
}

/** Rows without a value come last in both orders. */
function compare(a: number | string | undefined, b: number | string | undefined, descending: boolean): number {
  if (a === undefined || b === undefined) return a === b ? 0 : a === undefined ? 1 : -1;
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return descending ? -order : order;
}
