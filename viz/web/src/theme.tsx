// Light and dark: the system's colours unless the user has chosen others.

import { useState } from "preact/hooks";

type Theme = "system" | "light" | "dark";

const KEY = "mesh-theme";
const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
const SIGNS: Record<Theme, string> = { system: "◐", light: "☀", dark: "☾" };

function read(): Theme {
  const stored = localStorage.getItem(KEY);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export function applyTheme(theme: Theme = read()): void {
  if (theme === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem(KEY);
  } else {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem(KEY, theme);
  }
}

export function ThemeSwitch() {
  const [theme, set] = useState(read);
  const change = () => {
    const next = NEXT[theme];
    applyTheme(next);
    set(next);
  };
  return (
    <button type="button" class="quiet" onClick={change} aria-label={`Colours: ${theme}`} title={`Colours: ${theme}`}>
      <span aria-hidden="true">{SIGNS[theme]}</span>
    </button>
  );
}
