//! placeholder
#![cfg_attr(not(feature = "user"), no_std)]
