// The dashboard: navigation, and the page that the address names.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";

import { singular } from "./api";
import { useConnection } from "./feed";
import { ControlPlane } from "./pages/controlplane";
import { Namespace } from "./pages/namespace";
import { Namespaces } from "./pages/namespaces";
import { Extensions, Gateways, Routes } from "./pages/other";
import { Tap } from "./pages/tap";
import { Top } from "./pages/top";
import { Topology } from "./pages/topology";
import { Workload } from "./pages/workload";
import { Heading } from "./parts";
import { followLinks, navigate, usePlace } from "./router";
import { Search } from "./search";
import { grafana, useSettings } from "./settings";
import { applyTheme, ThemeSwitch } from "./theme";

const NAVIGATION: [string, string, string][] = [
  ["/namespaces", "Namespaces", "n"],
  ["/topology", "Topology", "y"],
  ["/tap", "Tap", "t"],
  ["/top", "Top", "o"],
  ["/routes", "Routes", "r"],
  ["/controlplane", "Control plane", "c"],
];

function Page() {
  const { parts } = usePlace();
  const [page, namespace, plural, name] = parts;
  switch (page) {
    case undefined:
      return <Namespaces />;
    case "namespaces": {
      if (!namespace) return <Namespaces />;
      const type = plural && singular(plural);
      if (plural && !type) return <Missing />;
      if (type && name) {
        return <Workload key={parts.join("/")} resource={{ namespace, type, name }} />;
      }
      return <Namespace key={parts.join("/")} namespace={namespace} plural={plural} />;
    }
    case "topology":
      return <Topology />;
    case "tap":
      return <Tap />;
    case "top":
      return <Top />;
    case "routes":
      return <Routes />;
    case "controlplane":
      return <ControlPlane />;
    case "gateways":
      return <Gateways />;
    case "extensions":
      return <Extensions />;
    default:
      return <Missing />;
  }
}

function Missing() {
  return (
    <>
      <Heading>Not found</Heading>
      <p>There is no such page. <a href="/namespaces">Show the namespaces</a>.</p>
    </>
  );
}

function App() {
  const { parts } = usePlace();
  const connection = useConnection();
  const overview = grafana(useSettings());
  const [searching, search] = useState(false);
  useKeys(() => search(true));
  const current = parts[0] ?? "namespaces";
  useEffect(() => {
    document.title = [...parts].reverse().concat("Mesh").join(" · ");
  }, [parts.join("/")]);
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>Skip to content</a>
      <header class="top">
        <a href="/namespaces" class="brand"><img src="/dist/icon.svg" alt="" width={24} height={24} /> Mesh</a>
        <nav aria-label="Pages">
          {NAVIGATION.map(([to, text, letter]) => (
            <a key={to} href={to} aria-current={to === `/${current}` ? "page" : undefined} title={`g ${letter}`}>{text}</a>
          ))}
          {overview && <a href={overview} target="_blank" rel="noopener noreferrer">Grafana</a>}
        </nav>
        <span class="tools">
          <span class={`connection ${connection}`} role="status">
            <span class="dot" aria-hidden="true" />
            {{ connecting: "connecting", open: "live", lost: "connection lost" }[connection]}
          </span>
          <button type="button" class="quiet" onClick={() => search(true)} aria-keyshortcuts="/">
            Search <kbd aria-hidden="true">/</kbd>
          </button>
          <ThemeSwitch />
        </span>
      </header>
      <main id="content" tabIndex={-1}>
        <Page />
      </main>
      {searching && <Search onClose={() => search(false)} />}
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

/** `/` searches; `g` and a letter opens a page. */
function useKeys(onSearch: () => void): void {
  useEffect(() => {
    let pressed = false;
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const typing = target.closest("input, select, textarea, dialog");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = pressed && NAVIGATION.find(([, , letter]) => letter === event.key);
      pressed = event.key === "g" && !pressed;
      if (page) {
        event.preventDefault();
        navigate(page[0]);
      } else if (event.key === "/") {
        event.preventDefault();
        onSearch();
      }
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
}

applyTheme();
followLinks();
const root = document.getElementById("app");
if (root) render(<App />, root);
