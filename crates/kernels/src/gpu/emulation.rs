//! Switch of a thread between its device and the emulator, which only tests turn.

#[cfg(any(test, feature = "emulator"))]
use std::cell::Cell;

#[cfg(any(test, feature = "emulator"))]
thread_local! {
    static EMULATED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `body` with all own kernels on the emulator, on this thread.
#[cfg(any(test, feature = "emulator"))]
pub fn emulated<R>(body: impl FnOnce() -> R) -> R {
    with(true, body)
}

/// Calls `body` with the CPU's own forms, within [`emulated`].
#[cfg(any(test, feature = "emulator"))]
pub fn not_emulated<R>(body: impl FnOnce() -> R) -> R {
    with(false, body)
}

#[cfg(any(test, feature = "emulator"))]
fn with<R>(emulated: bool, body: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            EMULATED.set(self.0);
        }
    }
    let _reset = Reset(EMULATED.replace(emulated));
    body()
}

/// Whether kernels run on the emulator, on this thread.
#[cfg(any(test, feature = "emulator"))]
pub(super) fn is_emulated() -> bool {
    EMULATED.get()
}

/// Whether kernels run on the emulator, on this thread.
#[cfg(not(any(test, feature = "emulator")))]
pub(super) fn is_emulated() -> bool {
    false
}
