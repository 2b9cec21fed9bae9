// The last values of a number while the page is open, for small charts. The metrics API has current
// values only.

import { useEffect, useRef, useState } from "preact/hooks";

/** Ten minutes at one value in two seconds. */
const MAX_VALUES = 300;

/** Returns the values of `value` since the page was opened, one for each different `tick`. */
export function useHistory(value: number | undefined, tick: unknown): number[] {
  const values = useRef<number[]>([]);
  const [, redraw] = useState(0);
  useEffect(() => {
    if (value === undefined) return;
    values.current = [...values.current.slice(1 - MAX_VALUES), value];
    redraw((count) => count + 1);
  }, [tick]);
  return values.current;
}
