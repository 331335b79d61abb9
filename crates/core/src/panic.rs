//! Messages of panics.

use std::any::Any;

/// The message of a panic that was caught; `None` where it carries something else than text.
pub fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
}
