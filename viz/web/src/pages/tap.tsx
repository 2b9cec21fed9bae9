// Live requests, one by one.

import { Heading } from "../parts";
import { useTap } from "../tap/client";
import { TapForm } from "../tap/form";
import { Requests, TapStatus, useRequests } from "../tap/live";

export function Tap() {
  const { requests, add, clear } = useRequests();
  const { state, start, stop } = useTap(add);
  return (
    <>
      <Heading>Tap</Heading>
      <TapForm verb="tap" running={state.running} onStop={stop}
        onStart={(query) => {
          clear();
          start(query);
        }} />
      <TapStatus state={state} count={requests.size} />
      <Requests requests={requests} running={state.running} />
    </>
  );
}
