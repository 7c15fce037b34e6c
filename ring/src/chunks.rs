// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parts of a slice as arrays of one size, in the Rust versions without `as_chunks`.

/// Returns the parts of `N` elements, from the front. Fewer elements at the end are left out.
#[inline]
pub fn chunks<T, const N: usize>(slice: &[T]) -> impl Iterator<Item = &[T; N]> {
    slice.chunks_exact(N).filter_map(|part| part.first_chunk())
}

/// Returns the parts of `N` elements, from the front, to be written.
#[inline]
pub fn chunks_mut<T, const N: usize>(slice: &mut [T]) -> impl Iterator<Item = &mut [T; N]> {
    slice.chunks_exact_mut(N).filter_map(|part| part.first_chunk_mut())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_part_is_left_out() {
        let mut bytes = [1, 2, 3, 4, 5];
        chunks_mut(&mut bytes).for_each(|pair: &mut [u8; 2]| pair.reverse());
        assert_eq!(bytes, [2, 1, 4, 3, 5]);
        assert_eq!(chunks::<u8, 2>(&bytes).collect::<Vec<_>>(), [&[2, 1], &[4, 3]]);
    }
}
