//! `meshctl viz top`: the requests of a tap in a full-screen table.
//!
//! ```text
//!   tap ─▶ LiveRequests ─▶ View: sorted, filtered rows ─▶ draw ─▶ Screen
//!                            ▲ keys                                 │ size
//! ```

mod draw;
mod live;
#[cfg(test)]
mod tests;
mod view;

use std::time::Duration;

use crossterm::event::Event;
use futures_util::StreamExt as _;
use tokio::time::MissedTickBehavior;

use self::live::{Grouping, LiveRequests};
use self::view::{Effect, View};
use super::tap::Filter;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::mesh::tap::TapStream;
use crate::output;
use crate::output::screen::Screen;
use crate::stop::Stop;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// Sum requests by route of their ServiceProfile instead of by path
    #[arg(long)]
    routes: bool,
    /// Sum the requests of all sources
    #[arg(long)]
    hide_sources: bool,
}

const HELP: &str = "\
Each row is a source, a destination, a method and a path without its query; PROXY tells whether
the proxy of the destination (in) or of the source (out) reported the requests.

Keys: q quits; s and S select the column to sort by, r reverses the order; / filters the rows,
Esc shows all; p pauses; arrows, a and d, PgUp and PgDn scroll.

Examples:
  meshctl viz top deploy/web -n shop
  meshctl viz top ns/shop --routes --hide-sources";

/// How the view has ended.
enum End {
    Quit,
    TapEnded,
}

/// Time between two frames while requests arrive. Keys are answered at once.
const FRAME_INTERVAL: Duration = Duration::from_millis(250);

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    let query = args.filter.query(&mesh, global)?;
    let mut stream = TapStream::start(&mesh, &query).await?;
    let grouping = Grouping {
        by_route: args.routes,
        hides_sources: args.hide_sources,
    };
    let mut live = LiveRequests::new(grouping);
    let mut view = View::new(&query.to_string(), grouping);
    let mut screen = Screen::open("`meshctl viz tap`")?;
    let end = watch(&mut screen, &mut stream, &mut live, &mut view).await;
    // The terminal must be as before when the reason is printed.
    drop(screen);
    if let End::TapEnded = end? {
        output::note(&format!(
            "the tap of {query} has ended: none of its pods is left"
        ));
    }
    Ok(())
}

async fn watch(
    screen: &mut Screen,
    stream: &mut TapStream,
    live: &mut LiveRequests,
    view: &mut View,
) -> anyhow::Result<End> {
    let mut frames = tokio::time::interval(FRAME_INTERVAL);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = Stop::new()?;
    let mut is_current = false;
    loop {
        tokio::select! {
            event = stream.next() => match event? {
                Some(event) => {
                    live.record(&event);
                    is_current = false;
                    continue;
                }
                None => return Ok(End::TapEnded),
            },
            input = screen.input.next() => match input {
                Some(Ok(Event::Key(key))) => match view.press(key) {
                    Effect::Quit => return Ok(End::Quit),
                    Effect::Redraw => {}
                },
                Some(Ok(_resized)) => {}
                Some(Err(error)) => return Err(error.into()),
                // The terminal has gone.
                None => return Ok(End::Quit),
            },
            _ = frames.tick() => if is_current {
                continue;
            },
            () = stop.requested() => return Ok(End::Quit),
        }
        view.update(live);
        screen.draw(|frame| draw::draw(frame, view))?;
        is_current = true;
    }
}
