//! Token embedding: rows of a table.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `table` | (V, H) | one row for each token of the vocabulary |
//! | `ids` | (T,) U32 | token ids |
//! | `y`, `dy` | (T, H) | embedded tokens and their gradient |
//!
//! y_t = table\[ids_t\]; the gradient of the table gets dy_t added to row ids_t.

use super::cuda;
use super::element::{Element, with_element};
use super::shape;
use super::storage::{Elements, is_fused, update};
use crate::gpu;
use candle_core::{DType, Result, Tensor};

/// The rows of `table` that `ids` name, (T, H).
pub fn forward(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    table.index_select(ids, 0)
}

/// Adds `dy` (T, H) to the rows `ids` of `into` (V, H) F32 in place (`+=`).
pub fn backward_add(dy: &Tensor, ids: &Tensor, into: &Tensor) -> Result<()> {
    let (_, hidden) = into.dims2()?;
    shape::expect(dy, &[ids.dims1()?, hidden], "embedding: dy")?;
    if gpu::takes(dy) && ids.dtype() == DType::U32 && into.dtype() == DType::F32 {
        return cuda::embedding::backward_add(dy, ids, into);
    }
    if !is_fused(dy) || ids.dtype() != DType::U32 {
        return reference::backward_add(dy, ids, into);
    }
    let dy = dy.contiguous()?;
    let ids = Elements::<u32>::new(ids)?;
    with_element!(dy.dtype(), T => {
        let dy = Elements::<T>::new(&dy)?;
        update(into, "embedding", |table| add_rows(&dy, &ids, hidden, table))
    })
}

fn add_rows<T: Element>(dy: &[T], ids: &[u32], hidden: usize, table: &mut [f32]) -> Result<()> {
    // One after the other: two positions may hold the same token, and this is a small part of full fine-tuning only.
    for (dy, id) in dy.chunks_exact(hidden.max(1)).zip(ids) {
        let start = *id as usize * hidden;
        let Some(row) = table.get_mut(start..start + hidden) else {
            candle_core::bail!("embedding: token {id} is outside the vocabulary");
        };
        row.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy.widen());
    }
    Ok(())
}

/// The op in plain candle ops.
pub mod reference {
    use candle_core::{Result, Tensor};

    /// See [`super::backward_add`].
    pub fn backward_add(dy: &Tensor, ids: &Tensor, into: &Tensor) -> Result<()> {
        let sum = into.index_add(ids, &dy.to_dtype(into.dtype())?, 0)?;
        into.slice_set(&sum, 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::random;
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn gradient_adds_up_where_a_token_occurs_twice() {
        let ids = Tensor::new(&[2u32, 0, 2], &Device::Cpu).unwrap();
        let dy = random(&[3, 4], 1).to_dtype(DType::F32).unwrap();
        let buffer = Tensor::ones(20, DType::F32, &Device::Cpu).unwrap();
        let into = buffer.narrow(0, 4, 12).unwrap().reshape((3, 4)).unwrap();
        backward_add(&dy, &ids, &into).unwrap();
        let (dy, got) = (dy.to_vec2::<f32>().unwrap(), buffer.to_vec1::<f32>().unwrap());
        for column in 0..4 {
            assert_eq!(got[column], 1.0);
            assert_eq!(got[4 + column], 1.0 + dy[1][column]);
            assert_eq!(got[8 + column], 1.0);
            assert_eq!(got[12 + column], 1.0 + dy[0][column] + dy[2][column]);
        }
    }

    #[test]
    fn rows_of_the_table_come_in_the_order_of_the_ids() {
        let table = random(&[5, 3], 1);
        let ids = Tensor::new(&[4u32, 1], &Device::Cpu).unwrap();
        let (table, y) = (table.to_vec2::<f64>().unwrap(), forward(&table, &ids).unwrap());
        assert_eq!(y.to_vec2::<f64>().unwrap(), [table[4].clone(), table[1].clone()]);
    }
}
