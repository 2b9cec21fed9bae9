//! Flow control (RFC 9113, section 5.2): how much may be sent, and how much may come.

/// What streams and connections may send before anything was said about it (RFC 9113, section
/// 6.9.2).
pub const DEFAULT_WINDOW: u32 = 65_535;

/// The largest window there is (RFC 9113, section 6.9.1).
pub const MAX_WINDOW: u32 = (1 << 31) - 1;

/// What we may send. Below nothing after the other side has made it smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow(i64);

/// What the other side may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWindow {
    /// As far as it knows.
    credit: i64,
    /// Was used and may be used again, which it has not been increment yet.
    released: u32,
    /// How much it may be in all.
    size: u32,
}

/// More was sent, or credit, than there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowControlError;

impl SendWindow {
    pub(crate) fn new(size: u32) -> Self {
        Self(size.into())
    }

    pub(crate) fn capacity(self) -> usize {
        self.0.max(0) as usize
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.0 -= bytes as i64;
    }

    /// By a WINDOW_UPDATE, or by the difference that new settings make.
    pub(crate) fn increase(&mut self, by: i64) -> Result<(), FlowControlError> {
        let grown = self.0 + by;
        if grown > MAX_WINDOW.into() {
            return Err(FlowControlError);
        }
        self.0 = grown;
        Ok(())
    }
}

impl ReceiveWindow {
    pub(crate) fn new(size: u32) -> Self {
        Self {
            credit: size.into(),
            released: 0,
            size,
        }
    }

    /// Something has come.
    pub(crate) fn consume(&mut self, bytes: u32) -> Result<(), FlowControlError> {
        if i64::from(bytes) > self.credit {
            return Err(FlowControlError);
        }
        self.credit -= i64::from(bytes);
        Ok(())
    }

    /// What had come is needed no more.
    pub(crate) fn release(&mut self, bytes: u32) {
        self.released += bytes;
    }

    /// The increment of a WINDOW_UPDATE, when it is worth a frame: half of the window. To be asked
    /// when something has become free.
    pub(crate) fn window_update(&mut self) -> Option<u32> {
        self.take_update((self.size / 2).into())
    }

    /// The same for a window that many share: while some of them hold most of it and read nothing,
    /// half of it never becomes free. What counts then is half of what they leave. To be asked also
    /// when something has come.
    pub(crate) fn shared_window_update(&mut self) -> Option<u32> {
        self.take_update(self.credit.min((self.size / 2).into()))
    }

    fn take_update(&mut self, threshold: i64) -> Option<u32> {
        if self.released == 0 || i64::from(self.released) < threshold {
            return None;
        }
        let increment = std::mem::take(&mut self.released);
        self.credit += i64::from(increment);
        Some(increment)
    }

    /// Makes the window of a connection larger. Smaller it cannot become.
    pub(crate) fn enlarge(&mut self, size: u32) {
        self.released += size.saturating_sub(self.size);
        self.size = self.size.max(size);
    }

    /// The other side has taken settings that make the window of each stream so large.
    pub(crate) fn resize(&mut self, size: u32) {
        self.credit += i64::from(size) - i64::from(self.size);
        self.size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_sent_can_be_less_than_nothing() {
        let mut window = SendWindow::new(100);
        window.consume(80);
        window.increase(-50).unwrap();
        assert_eq!(window.capacity(), 0);
        window.increase(40).unwrap();
        assert_eq!(window.capacity(), 10);
        assert_eq!(window.increase(MAX_WINDOW.into()), Err(FlowControlError));
        assert_eq!(window.capacity(), 10);
    }

    #[test]
    fn the_other_side_is_told_when_half_is_free() {
        let mut window = ReceiveWindow::new(100);
        window.consume(100).unwrap();
        assert_eq!(window.consume(1), Err(FlowControlError));
        window.release(49);
        assert_eq!(window.window_update(), None);
        assert_eq!(
            window.consume(1),
            Err(FlowControlError),
            "not increment yet"
        );
        window.release(1);
        assert_eq!(window.window_update(), Some(50));
        window.consume(50).unwrap();
        assert_eq!(window.consume(1), Err(FlowControlError));
    }

    #[test]
    fn what_some_do_not_read_keeps_nobody_else_waiting() {
        let mut window = ReceiveWindow::new(100);
        window.consume(90).unwrap();
        window.release(6);
        assert_eq!(window.shared_window_update(), None, "it may send ten");
        window.consume(4).unwrap();
        assert_eq!(window.shared_window_update(), Some(6), "it may send six");
        window.consume(12).unwrap();
        window.release(1);
        assert_eq!(window.shared_window_update(), Some(1), "it waits for that");
        let mut window = ReceiveWindow::new(100);
        window.consume(49).unwrap();
        window.release(49);
        assert_eq!(
            window.shared_window_update(),
            None,
            "half of the window is left"
        );
        window.consume(1).unwrap();
        window.release(1);
        assert_eq!(window.shared_window_update(), Some(50));
    }

    #[test]
    fn windows_become_larger() {
        let mut window = ReceiveWindow::new(100);
        window.enlarge(300);
        assert_eq!(window.shared_window_update(), Some(200));
        window.consume(300).unwrap();
        window.enlarge(200);
        assert_eq!(window.shared_window_update(), None);
        let mut window = ReceiveWindow::new(100);
        window.consume(60).unwrap();
        window.resize(50);
        assert_eq!(window.consume(1), Err(FlowControlError));
        window.release(60);
        assert_eq!(window.window_update(), Some(60));
        window.consume(50).unwrap();
        assert_eq!(window.consume(1), Err(FlowControlError));
    }
}
