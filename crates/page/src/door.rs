//! The door to JavaScript: texts in the memory of the module. `room` makes room for a question, `ask` takes it and returns where the answer
//! lies, whose length stands in the four bytes before it; `leave` frees an answer.

use super::answer;

/// Bytes of a length.
const LENGTH: usize = size_of::<u32>();

/// Room for so many bytes of a question, which [`ask`] takes.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn room(length: usize) -> *mut u8 {
    Box::leak(vec![0_u8; length].into_boxed_slice()).as_mut_ptr()
}

/// Address of the answer to a question of so many bytes.
///
/// # Safety
/// `question` is what [`room`] returned for `length`, filled in since, and asked once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ask(question: *mut u8, length: usize) -> *mut u8 {
    // SAFETY: the block of `room`, of the same length, is owned again.
    let question = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(question, length)) };
    let answer = answer(&String::from_utf8_lossy(&question));
    let mut block = Vec::with_capacity(LENGTH + answer.len());
    block.extend((answer.len() as u32).to_le_bytes());
    block.extend(answer.as_bytes());
    let block = Box::leak(block.into_boxed_slice());
    block[LENGTH..].as_mut_ptr()
}

/// Frees an answer.
///
/// # Safety
/// `answer` is what [`ask`] returned, and is left once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn leave(answer: *mut u8) {
    // SAFETY: the four bytes before an answer hold its length, and the block of both was made by `ask`.
    unsafe {
        let block = answer.sub(LENGTH);
        let mut length = [0_u8; LENGTH];
        length.copy_from_slice(std::slice::from_raw_parts(block, LENGTH));
        let whole = LENGTH + u32::from_le_bytes(length) as usize;
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(block, whole)));
    }
}
