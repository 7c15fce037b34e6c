// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Compile-time comparison of this crate with the installed headers: build.rs writes the list, this
//! file defines its macros. No code of it exists at run time.

/// Headers as converted by bindgen.
#[allow(
    warnings,
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated"
)]
mod headers {
    include!(concat!(env!("OUT_DIR"), "/headers.rs"));
}

/// Returns the size of the field to which an accessor refers.
const fn size<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Checks that a constant of this crate has the value of the header, in 64 bits: bindgen treats
/// each number as signed.
macro_rules! same_value {
    ($name:ident = $value:literal) => {
        const _: () = assert!(
            (crate::$name as i128 - ($value)) % (1 << 64) == 0,
            concat!(stringify!($name), " differs from the installed header")
        );
    };
}

/// Checks that a field has the same offset and size on both sides.
///
/// Only a structure that is embedded last may have grown. A field that only the headers have must
/// lie after all known fields.
macro_rules! same_field {
    ($struct:ident, behind ours is $their:ident) => {
        const _: () = assert!(
            core::mem::offset_of!(headers::$struct, $their) >= size_of::<crate::$struct>(),
            concat!(
                stringify!($struct),
                ".",
                stringify!($their),
                " is unknown and lies among the known fields"
            )
        );
    };
    ($struct:ident, $our:ident is $their:ident) => {
        const _: () = {
            let our_at = core::mem::offset_of!(crate::$struct, $our);
            let their_at = core::mem::offset_of!(headers::$struct, $their);
            let our_size = size::<crate::$struct, _>(|s| &s.$our);
            let their_size = size::<headers::$struct, _>(|s| &s.$their);
            let last = our_at + our_size == size_of::<crate::$struct>()
                && their_at + their_size == size_of::<headers::$struct>();
            assert!(
                our_at == their_at && (our_size == their_size || last),
                concat!(
                    stringify!($struct),
                    ".",
                    stringify!($our),
                    " differs from the installed header"
                )
            );
        };
    };
}

include!(concat!(env!("OUT_DIR"), "/checks.rs"));

#[cfg(test)]
mod tests {
    use super::{CONSTANTS, FIELDS};

    /// Checks the number of comparisons for the oldest supported headers; an error in the build
    /// script would lower it.
    #[test]
    fn the_comparison_covers_the_headers() {
        println!("compared with the installed headers: {CONSTANTS} constants, {FIELDS} fields");
        const { assert!(CONSTANTS >= 400 && FIELDS >= 400) };
    }
}
