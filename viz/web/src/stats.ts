// Numbers for people: rates, ratios and durations from counts within a window.

import type { BasicStats, Row } from "./api";

export interface Numbers {
  rps: number;
  /** From 0 to 1; undefined without requests, as latencies are. */
  success: number | undefined;
  p50: number | undefined;
  p95: number | undefined;
  p99: number | undefined;
}

export type Health = "good" | "warn" | "bad" | "none";

/** Parses a window such as `1m`, `30s` or `1m30s` to seconds. */
export function seconds(window: string): number {
  let total = 0;
  for (const [, value, unit] of window.matchAll(/([\d.]+)(h|ms|m|s)/g)) {
    total += Number(value) * ({ h: 3600, m: 60, s: 1, ms: 0.001 }[unit as "h"] ?? 0);
  }
  return total || 60;
}

export function numbers(stats: BasicStats | null | undefined, window: string): Numbers | undefined {
  if (!stats) return undefined;
  const success = Number(stats.successCount);
  const all = success + Number(stats.failureCount);
  return {
    rps: all / seconds(window),
    success: all > 0 ? success / all : undefined,
    p50: all > 0 ? Number(stats.latencyMsP50) : undefined,
    p95: all > 0 ? Number(stats.latencyMsP95) : undefined,
    p99: all > 0 ? Number(stats.latencyMsP99) : undefined,
  };
}

export const ofRow = (row: Row): Numbers | undefined => numbers(row.stats, row.timeWindow);

export function health(success: number | undefined): Health {
  if (success === undefined) return "none";
  if (success >= 0.99) return "good";
  return success >= 0.95 ? "warn" : "bad";
}

export function percent(ratio: number | undefined): string {
  if (ratio === undefined) return "–";
  // A failure is never rounded away.
  const text = (Math.floor(ratio * 10000) / 100).toFixed(2);
  return `${text}%`;
}

export function rate(rps: number | undefined): string {
  if (rps === undefined) return "–";
  if (rps >= 1000) return `${(rps / 1000).toFixed(1)}k`;
  return rps >= 100 ? rps.toFixed(0) : rps.toFixed(rps >= 10 ? 1 : 2);
}

export function millis(ms: number | undefined): string {
  if (ms === undefined) return "–";
  if (ms >= 10_000) return `${(ms / 1000).toFixed(1)} s`;
  return ms < 1 && ms > 0 ? `${(ms * 1000).toFixed(0)} µs` : `${ms.toFixed(ms < 10 && ms % 1 ? 1 : 0)} ms`;
}

export function bytes(count: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${unit && count < 10 ? count.toFixed(1) : count.toFixed(0)} ${units[unit]}`;
}

/** Parses a duration such as `75s` or `0.001500s` to milliseconds. */
export function duration(text: string | null | undefined): number | undefined {
  return text ? Number.parseFloat(text) * 1000 : undefined;
}

/** Writes the time from now to an event in the future. */
export function until(seconds: number): string {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 1440)} d`;
}

export function age(text: string | null | undefined): string {
  const ms = duration(text);
  if (ms === undefined) return "–";
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 1) return `${Math.floor(ms / 1000)}s`;
  if (minutes < 60) return `${minutes}m`;
  return minutes < 1440 ? `${Math.floor(minutes / 60)}h` : `${Math.floor(minutes / 1440)}d`;
}
