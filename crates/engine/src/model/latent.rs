//! The second projections of latent attention, and what becomes of queries, keys and values between them and attention.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | a | (T, Rq) | compressed queries, or (T, Hq d) queries where they are projected once |
//! | c | (T, Rkv) | compressed keys and values |
//! | p | (T, r) | the part of keys that turns, of all heads |
//!
//! q = turn(b_q(norm(a))); [k, v] = b_kv(norm(c)), with turn(p) behind each head's k. Queries, keys and values are kept as attention
//! reads them, and a and c with rstd of their norms; backward makes the normed ones again.

use candle_core::Result;

use super::attended::{Attended, flat};
use super::head_norms::QueryKeyPath;
use super::linear::{LinearGroup, expect_gradient};
use super::norm::Norm;
use super::saved::{ExpansionSaved, LatentSaved};
use super::traced::latent_heads;
use super::{AdapterPass, RopeTables, Stream};
use crate::tensor::Tensor;

/// The second projections of a layer.
#[derive(Debug)]
pub(super) struct Latent {
    /// Second projection of queries; absent where they are projected once.
    pub query: Option<Expansion>,
    pub key_value: Expansion,
    pub heads: usize,
    /// n, dimensions of a head's own key.
    pub plain: usize,
}

/// A norm and the projection behind it.
#[derive(Debug)]
pub(super) struct Expansion {
    pub norm: Norm,
    pub projection: LinearGroup,
}

impl Expansion {
    fn forward(&self, x: Tensor, pass: &AdapterPass) -> Result<(Tensor, ExpansionSaved)> {
        let (normed, rstd) = self.norm.forward(&x)?;
        let (mut outputs, xa) = self.projection.forward(&normed, pass)?;
        match (outputs.pop(), outputs.is_empty()) {
            (Some(output), true) => Ok((output, ExpansionSaved { x, rstd, xa })),
            _ => candle_core::bail!("latent attention: a second projection of other than one layer"),
        }
    }

    /// The gradient of x; adds all gradients of norm and projection.
    fn backward(&self, saved: ExpansionSaved, dy: Tensor, pass: &AdapterPass) -> Result<Tensor> {
        let normed = || Ok(self.norm.forward(&saved.x)?.0);
        let d_normed = self.projection.backward(normed, &saved.xa, vec![dy], pass, true)?;
        self.norm.backward(&saved.x, &saved.rstd, &expect_gradient(d_normed)?)
    }
}

impl Latent {
    /// Groups of linear layers in the second projections.
    pub(super) fn groups(&self) -> impl Iterator<Item = &LinearGroup> {
        self.query
            .iter()
            .chain([&self.key_value])
            .map(|expansion| &expansion.projection)
    }

    /// Groups of [`Latent::groups`], to be changed, in the same order.
    pub(super) fn groups_mut(&mut self) -> impl Iterator<Item = &mut LinearGroup> {
        self.query
            .iter_mut()
            .chain([&mut self.key_value])
            .map(|expansion| &mut expansion.projection)
    }

    /// Queries, keys and values from [a, c, p].
    pub(super) fn forward(
        &self,
        projected: Vec<Tensor>,
        path: &QueryKeyPath,
        stream: &Stream<'_>,
        ropes: &RopeTables,
    ) -> Result<Attended> {
        let pass = &stream.pass;
        let [queries, compressed, shared] = <[Tensor; 3]>::try_from(projected).map_err(|other| {
            candle_core::Error::Msg(format!(
                "latent attention: {} projections instead of three",
                other.len()
            ))
        })?;
        let (queries, query) = match &self.query {
            Some(expansion) => {
                let (queries, saved) = expansion.forward(queries, pass)?;
                (queries, Some(saved))
            }
            None => (queries, None),
        };
        let (expanded, key_value) = self.key_value.forward(compressed, pass)?;
        let tokens = queries.dim(0)?;
        let both = [queries.reshape((tokens, self.heads, ()))?, shared.unsqueeze(1)?];
        drop((queries, shared));
        let [q, shared] = path.forward(both, stream, ropes)?.both;
        let (k, v) = latent_heads::forward(&expanded, &shared, self.heads, self.plain)?;
        Ok(Attended {
            kept_q: q.clone(),
            kept_k: Some(k.clone()),
            q,
            k,
            kept_v: Some(v.clone()),
            v,
            rstd: [None, None, None],
            latent: Some(LatentSaved { query, key_value }),
        })
    }

    /// The gradients of [a, c, p] from those of queries, keys and values; adds all gradients of the second projections.
    pub(super) fn backward(
        &self,
        saved: LatentSaved,
        [d_q, d_k, d_v]: [Tensor; 3],
        path: &QueryKeyPath,
        stream: &Stream<'_>,
        ropes: &RopeTables,
    ) -> Result<Vec<Tensor>> {
        let pass = &stream.pass;
        let (d_expanded, d_shared) = latent_heads::backward(&d_k, &d_v, self.plain)?;
        drop((d_k, d_v));
        let [d_q, d_shared] = path.turn_back([d_q, d_shared], stream, ropes)?;
        let d_compressed = self.key_value.backward(saved.key_value, d_expanded, pass)?;
        let d_queries = flat(&d_q)?;
        drop(d_q);
        let d_queries = match (&self.query, saved.query) {
            (Some(expansion), Some(saved)) => expansion.backward(saved, d_queries, pass)?,
            _ => d_queries,
        };
        Ok(vec![d_queries, d_compressed, flat(&d_shared)?])
    }
}
