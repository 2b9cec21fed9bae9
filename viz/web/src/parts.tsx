// What several pages show: numbers, states, charts and messages.

import type { ComponentChildren } from "preact";

import { type Feed } from "./feed";
import { grafana, useSettings } from "./settings";
import { href, type Resource, type Row } from "./api";
import { health, percent } from "./stats";

export function Success({ ratio }: { ratio: number | undefined }) {
  const state = health(ratio);
  return (
    <span class={`success ${state}`}>
      <span class="dot" aria-hidden="true" />
      {percent(ratio)}
    </span>
  );
}

export function Meshed({ row }: { row: Row }) {
  const { meshedPodCount: meshed, runningPodCount: running } = row;
  const ratio = Number(running) ? Number(meshed) / Number(running) : 0;
  return (
    <span class="meshed" title={`${meshed} of ${running} running pods have a proxy`}>
      <meter min={0} max={1} value={ratio} aria-label="meshed pods" />
      {meshed}/{running}
    </span>
  );
}

export function Link({ to, short }: { to: Resource; short?: boolean }) {
  return (
    <a href={href(to)}>
      {short || to.type === "namespace" ? to.name : `${to.namespace}/${to.name}`}
    </a>
  );
}

/** A padlock of 12 by 12, because not every font has one. */
export const LOCK = "M3 5V3.5a3 3 0 0 1 6 0V5h1v6H2V5zm1.4 0h3.2V3.5a1.6 1.6 0 0 0-3.2 0z";

/** Whether a connection is authenticated by mutual TLS, and as what. */
export function Secured({ identity, reason }: { identity: string; reason: string }) {
  if (identity) {
    return (
      <span class="secured" title={`mutual TLS; the identity of the server is ${identity}`}>
        <svg class="lock" viewBox="0 0 12 12" aria-hidden="true"><path d={LOCK} /></svg> mTLS
      </span>
    );
  }
  return (
    <span class="unsecured" title={reason || "no identity"}>
      plaintext{reason && `: ${reason}`}
    </span>
  );
}

const WIDTH = 120;
const HEIGHT = 28;

/** A line without axes; the current value stands beside it. */
export function Sparkline({ values, label }: { values: number[]; label: string }) {
  const max = Math.max(...values, 1e-9);
  const step = WIDTH / Math.max(values.length - 1, 1);
  const at = (value: number, index: number) =>
    `${(index * step).toFixed(1)},${(HEIGHT - 2 - (value / max) * (HEIGHT - 4)).toFixed(1)}`;
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label} preserveAspectRatio="none">
      {values.length > 1 && <polyline points={values.map(at).join(" ")} />}
    </svg>
  );
}

/** A number with its name, and how it has changed. */
export function Figure({ name, children, values }: { name: string; children: ComponentChildren; values?: number[] }) {
  return (
    <div class="figure">
      <dt>{name}</dt>
      <dd>
        {children}
        {values && <Sparkline values={values} label={`${name} since the page was opened`} />}
      </dd>
    </div>
  );
}

/** What a feed has no data for, or not any more. */
export function Problem({ feed, what }: { feed: Feed<unknown>; what: string }) {
  if (feed.error) {
    return (
      <p class="problem" role="alert">
        {feed.data ? `${what} is not up to date: ` : `Cannot show ${what}: `}
        {feed.error}
      </p>
    );
  }
  return feed.data ? null : <p class="wait" role="status">Waiting for {what}…</p>;
}

export function Section({ title, aside, children }: { title: string; aside?: ComponentChildren; children: ComponentChildren }) {
  const id = title.toLowerCase().replace(/\W+/g, "-");
  return (
    <section aria-labelledby={id}>
      <header>
        <h2 id={id}>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  );
}

export function Heading({ children, trail }: { children: ComponentChildren; trail?: [string, string][] }) {
  return (
    <div class="heading">
      {trail && (
        <nav aria-label="Path">
          {trail.map(([to, text]) => (
            <span key={to}>
              <a href={to}>{text}</a> /{" "}
            </span>
          ))}
        </nav>
      )}
      <h1 tabIndex={-1}>{children}</h1>
    </div>
  );
}

export function GrafanaLink({ to }: { to: Resource }) {
  const address = grafana(useSettings(), to);
  return address ? <a href={address} target="_blank" rel="noopener noreferrer">Grafana</a> : null;
}
