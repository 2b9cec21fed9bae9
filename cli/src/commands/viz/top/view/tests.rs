//! Keys, order and filter.

use super::super::tests::fixture::complete;
use super::*;

fn live() -> LiveRequests {
    let mut live = LiveRequests::new(Grouping::default());
    for _ in 0..3 {
        complete(&mut live, "web-0", "/often", 5, true);
    }
    complete(&mut live, "web-1", "/slow", 900, true);
    complete(&mut live, "db-0", "/failed", 1, false);
    live
}

fn view() -> View {
    View::new("test", Grouping::default())
}

fn press(view: &mut View, keys: &str) {
    for c in keys.chars() {
        let effect = view.press(KeyCode::Char(c).into());
        assert_eq!(effect, Effect::Redraw, "{c}");
    }
}

fn paths(view: &mut View) -> Vec<String> {
    view.update(&live());
    view.rows()
        .iter()
        .map(|(key, _)| key.path.clone())
        .collect()
}

#[test]
fn rows_are_sorted_by_the_selected_column() {
    let mut view = view();
    assert_eq!(paths(&mut view), ["/often", "/failed", "/slow"]);
    assert_eq!(view.sort(), (Column::Count, false));
    press(&mut view, "r");
    assert_eq!(paths(&mut view)[2], "/often");
    press(&mut view, "rs");
    assert_eq!(view.sort(), (Column::Best, false));
    assert_eq!(paths(&mut view), ["/slow", "/often", "/failed"]);
    press(&mut view, "sss");
    assert_eq!(view.sort(), (Column::Success, false));
    assert_eq!(paths(&mut view)[0], "/failed");
    press(&mut view, "s");
    assert_eq!(view.sort(), (Column::Proxy, false));
    press(&mut view, "SSSSSS");
    assert_eq!(view.sort(), (Column::Path, false));
    assert_eq!(paths(&mut view), ["/failed", "/often", "/slow"]);
}

#[test]
fn filter_is_edited_and_removed() {
    let mut view = view();
    press(&mut view, "/WEB");
    // Keys are text while the filter is edited.
    press(&mut view, "q");
    view.press(KeyCode::Backspace.into());
    assert_eq!(view.filter(), ("web", true));
    assert_eq!(paths(&mut view), ["/often", "/slow"]);
    view.press(KeyCode::Enter.into());
    press(&mut view, "r");
    assert_eq!(paths(&mut view), ["/slow", "/often"]);
    view.press(KeyCode::Esc.into());
    assert_eq!(paths(&mut view).len(), 3);
    assert_eq!(view.filter(), ("", false));
    press(&mut view, "/");
    press(&mut view, &"x".repeat(MAX_FILTER + 1));
    assert_eq!(view.filter().0.len(), MAX_FILTER);
}

#[test]
fn scrolling_stays_within_the_table() {
    let mut view = view();
    view.update(&live());
    press(&mut view, "jjjjjj");
    assert_eq!(view.rows().len(), 1);
    press(&mut view, "k");
    assert_eq!(view.rows().len(), 2);
    view.press(KeyCode::Home.into());
    assert_eq!(view.rows().len(), 3);
    view.press(KeyCode::End.into());
    assert_eq!(view.rows().len(), 1);
    // Fewer rows than were scrolled by.
    press(&mut view, "/db");
    assert_eq!(paths(&mut view), ["/failed"]);
    view.press(KeyCode::Esc.into());
    for _ in 0..20 {
        view.press(KeyCode::Right.into());
    }
    assert_eq!(view.columns(), [Column::Success]);
    press(&mut view, "a");
    assert_eq!(view.columns().len(), 2);
    let empty = LiveRequests::new(Grouping::default());
    view.update(&empty);
    view.press(KeyCode::PageDown.into());
    assert!(view.rows().is_empty());
}

#[test]
fn paused_view_keeps_its_rows() {
    let mut view = view();
    view.update(&live());
    press(&mut view, "p");
    view.update(&LiveRequests::new(Grouping::default()));
    assert_eq!((view.row_count(), view.completed()), (3, 5));
    press(&mut view, " ");
    view.update(&LiveRequests::new(Grouping::default()));
    assert_eq!(view.row_count(), 0);
}

#[test]
fn view_is_left_by_its_keys() {
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    let mut view = view();
    assert_eq!(view.press(KeyCode::Char('q').into()), Effect::Quit);
    assert_eq!(view.press(control_c), Effect::Quit);
    press(&mut view, "/");
    assert_eq!(view.press(control_c), Effect::Quit);
}

#[test]
fn latencies_are_short() {
    for (micros, text) in [
        (0, "0µs"),
        (999, "999µs"),
        (1_000, "1ms"),
        (9_999_999, "9999ms"),
        (10_000_000, "10s"),
    ] {
        assert_eq!(latency(Duration::from_micros(micros)), text);
    }
}
