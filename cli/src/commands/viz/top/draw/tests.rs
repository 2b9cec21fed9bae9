//! The contents of the screen.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::live::{Grouping, LiveRequests};
use super::super::tests::fixture::complete;
use super::*;

fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y: u16| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
    (0..height).map(|y| line(y).trim_end().to_owned()).collect()
}

fn view() -> View {
    let mut live = LiveRequests::new(Grouping::default());
    complete(&mut live, "web-0", "/often", 5, true);
    complete(&mut live, "web-0", "/often", 7, false);
    complete(
        &mut live,
        "database-0",
        "/a/rather/long/path/of/a/request",
        1_200,
        true,
    );
    let mut view = View::new("deployment/web in namespace shop", Grouping::default());
    view.update(&live);
    view
}

#[test]
fn wide_screen_shows_everything() {
    let lines = screen(&view(), 130, 6);
    assert_eq!(lines[0], "deployment/web in namespace shop: 3 requests");
    assert_eq!(
        lines[1],
        "PROXY  SOURCE    DESTINATION  METHOD  PATH                              COUNT▼    BEST   WORST    LAST  SUCCESS"
    );
    assert_eq!(
        lines[2],
        "out    client-0  web-0        GET     /often                                 2     5ms     7ms     7ms   50.00%"
    );
    assert_eq!(
        lines[3],
        "out    client-0  database-0   GET     /a/rather/long/path/of/a/request       1  1200ms  1200ms  1200ms  100.00%"
    );
    assert_eq!(lines[4], "");
    assert!(lines[5].starts_with("q quit"), "{lines:?}");
}

#[test]
fn texts_are_cut_before_numbers() {
    let lines = screen(&view(), 95, 5);
    assert!(lines[1].ends_with("SUCCESS"), "{lines:?}");
    assert!(lines[3].contains("/a/rather/l"), "{lines:?}");
    assert!(lines[3].ends_with("100.00%"), "{lines:?}");
}

#[test]
fn columns_that_do_not_fit_are_reached_by_scrolling() {
    let mut view = view();
    let lines = screen(&view, 60, 5);
    assert!(lines[1].ends_with("COUNT▼"), "{lines:?}");
    for _ in 0..3 {
        view.press(crossterm::event::KeyCode::Right.into());
    }
    let lines = screen(&view, 60, 5);
    assert!(lines[1].starts_with("METHOD"), "{lines:?}");
    assert!(lines[3].ends_with("1200ms"), "{lines:?}");
}

#[test]
fn small_screens_are_drawn() {
    let view = view();
    for (width, height) in [(1, 1), (2, 2), (10, 3), (40, 4), (300, 1)] {
        assert_eq!(screen(&view, width, height).len(), usize::from(height));
    }
    let lines = screen(&view, 95, 4);
    assert!(lines[2].contains("/often"), "{lines:?}");
    assert!(lines[3].starts_with("q quit"), "{lines:?}");
}

#[test]
fn empty_view_says_what_it_waits_for() {
    let view = View::new("pod/a in namespace b", Grouping::default());
    let lines = screen(&view, 60, 4);
    assert_eq!(lines[0], "pod/a in namespace b: 0 requests");
    assert!(lines[3].starts_with("waiting for requests"), "{lines:?}");
}
