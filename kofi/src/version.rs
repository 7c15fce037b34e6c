// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Versions in the packing of `FI_VERSION(major, minor)`.

/// Version of an interface or of a provider; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl Version {
    /// `FI_VERSION(major, minor)`
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self((major as u32) << 16 | minor as u32)
    }

    /// `FI_MAJOR(version)`
    #[must_use]
    pub const fn major(self) -> u32 {
        self.0 >> 16
    }

    /// `FI_MINOR(version)`
    #[must_use]
    pub const fn minor(self) -> u32 {
        self.0 & 0xffff
    }

    /// Whether a framework of this version supports providers written for `other`: the same major
    /// version, and not a newer minor one.
    #[must_use]
    pub const fn understands(self, other: Version) -> bool {
        self.major() == other.major() && other.minor() <= self.minor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_major_and_no_newer_minor_is_understood() {
        let ours = Version::new(1, 7);
        for (other, understood) in
            [((1, 7), true), ((1, 0), true), ((1, 8), false), ((2, 0), false), ((0, 7), false)]
        {
            assert_eq!(ours.understands(Version::new(other.0, other.1)), understood, "{other:?}");
        }
    }

    #[test]
    fn the_parts_are_those_of_fi_version() {
        let version = Version::new(2, 5);
        assert_eq!(version, Version(0x0002_0005));
        assert_eq!((version.major(), version.minor()), (2, 5));
        assert!(version > Version::new(1, 17));
    }
}
