//! Flow control (RFC 9113, section 5.2): how much may be sent, and how much may come.

/// What streams and connections may send before anything was said about it (RFC 9113, section
/// 6.9.2).
pub const DEFAULT_WINDOW: u32 = 65_535;

/// The largest window there is (RFC 9113, section 6.9.1).
pub const MAX_WINDOW: u32 = (1 << 31) - 1;

/// What we may send. Below nothing after the other side has made it smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending(i64);

/// What the other side may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiving {
    /// As far as it knows.
    allowed: i64,
    /// Was used and may be used again, which it has not been told yet.
    free: u32,
    /// How much it may be in all.
    size: u32,
}

/// More was sent, or allowed, than there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

impl Sending {
    pub(crate) fn new(size: u32) -> Self {
        Self(size.into())
    }

    pub(crate) fn room(self) -> usize {
        self.0.max(0) as usize
    }

    pub(crate) fn take(&mut self, bytes: usize) {
        self.0 -= bytes as i64;
    }

    /// By a WINDOW_UPDATE, or by the difference that new settings make.
    pub(crate) fn grow(&mut self, by: i64) -> Result<(), Overflow> {
        let grown = self.0 + by;
        if grown > MAX_WINDOW.into() {
            return Err(Overflow);
        }
        self.0 = grown;
        Ok(())
    }
}

impl Receiving {
    pub(crate) fn new(size: u32) -> Self {
        Self {
            allowed: size.into(),
            free: 0,
            size,
        }
    }

    /// Something has come.
    pub(crate) fn take(&mut self, bytes: u32) -> Result<(), Overflow> {
        if i64::from(bytes) > self.allowed {
            return Err(Overflow);
        }
        self.allowed -= i64::from(bytes);
        Ok(())
    }

    /// What had come is needed no more.
    pub(crate) fn free(&mut self, bytes: u32) {
        self.free += bytes;
    }

    /// The increment of a WINDOW_UPDATE, when it is worth a frame: half of the window. To be asked
    /// when something has become free.
    pub(crate) fn update(&mut self) -> Option<u32> {
        self.update_worth((self.size / 2).into())
    }

    /// The same for a window that many share: while some of them hold most of it and read nothing,
    /// half of it never becomes free. What counts then is half of what they leave. To be asked also
    /// when something has come.
    pub(crate) fn shared_update(&mut self) -> Option<u32> {
        self.update_worth(self.allowed.min((self.size / 2).into()))
    }

    fn update_worth(&mut self, least: i64) -> Option<u32> {
        if self.free == 0 || i64::from(self.free) < least {
            return None;
        }
        let told = std::mem::take(&mut self.free);
        self.allowed += i64::from(told);
        Some(told)
    }

    /// Makes the window of a connection larger. Smaller it cannot become.
    pub(crate) fn enlarge(&mut self, size: u32) {
        self.free += size.saturating_sub(self.size);
        self.size = self.size.max(size);
    }

    /// The other side has taken settings that make the window of each stream so large.
    pub(crate) fn resize(&mut self, size: u32) {
        self.allowed += i64::from(size) - i64::from(self.size);
        self.size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_sent_can_be_less_than_nothing() {
        let mut window = Sending::new(100);
        window.take(80);
        window.grow(-50).unwrap();
        assert_eq!(window.room(), 0);
        window.grow(40).unwrap();
        assert_eq!(window.room(), 10);
        assert_eq!(window.grow(MAX_WINDOW.into()), Err(Overflow));
        assert_eq!(window.room(), 10);
    }

    #[test]
    fn the_other_side_is_told_when_half_is_free() {
        let mut window = Receiving::new(100);
        window.take(100).unwrap();
        assert_eq!(window.take(1), Err(Overflow));
        window.free(49);
        assert_eq!(window.update(), None);
        assert_eq!(window.take(1), Err(Overflow), "not told yet");
        window.free(1);
        assert_eq!(window.update(), Some(50));
        window.take(50).unwrap();
        assert_eq!(window.take(1), Err(Overflow));
    }

    #[test]
    fn what_some_do_not_read_keeps_nobody_else_waiting() {
        let mut window = Receiving::new(100);
        window.take(90).unwrap();
        window.free(6);
        assert_eq!(window.shared_update(), None, "it may send ten");
        window.take(4).unwrap();
        assert_eq!(window.shared_update(), Some(6), "it may send six");
        window.take(12).unwrap();
        window.free(1);
        assert_eq!(window.shared_update(), Some(1), "it waits for that");
        let mut window = Receiving::new(100);
        window.take(49).unwrap();
        window.free(49);
        assert_eq!(window.shared_update(), None, "half of the window is left");
        window.take(1).unwrap();
        window.free(1);
        assert_eq!(window.shared_update(), Some(50));
    }

    #[test]
    fn windows_become_larger() {
        let mut window = Receiving::new(100);
        window.enlarge(300);
        assert_eq!(window.shared_update(), Some(200));
        window.take(300).unwrap();
        window.enlarge(200);
        assert_eq!(window.shared_update(), None);
        let mut window = Receiving::new(100);
        window.take(60).unwrap();
        window.resize(50);
        assert_eq!(window.take(1), Err(Overflow));
        window.free(60);
        assert_eq!(window.update(), Some(60));
        window.take(50).unwrap();
        assert_eq!(window.take(1), Err(Overflow));
    }
}
