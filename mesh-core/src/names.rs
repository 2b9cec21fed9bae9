//! Enums whose variants have names that users see: of flags, labels and serialized values.

/// Defines an enum with the name of each variant, which `as_str` returns and `Display` writes. With
/// `ALL` after the enum's own name, a constant lists the variants.
///
/// ```text
/// mesh_core::names! {
///     /// The direction of a request.
///     #[derive(Clone, Copy, Debug)]
///     pub enum Direction, ALL {
///         /// To the application.
///         Inbound = "inbound",
///         /// From the application.
///         Outbound = "outbound",
///     }
/// }
/// ```
#[macro_export]
macro_rules! names {
    (@all ALL $vis:vis $($variant:ident)+) => {
        /// All of them.
        $vis const ALL: [Self; [$(stringify!($variant)),+].len()] = [$(Self::$variant),+];
    };
    (@all $vis:vis $($variant:ident)+) => {};
    ($(#[$meta:meta])* $vis:vis enum $name:ident $(, $all:ident)? {
        $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)+
    }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            $crate::names! { @all $($all)? $vis $($variant)+ }

            /// Returns the name.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    names! {
        #[derive(Clone, Copy, Debug, PartialEq)]
        enum Named, ALL {
            One = "one",
            Two = "the other",
        }
    }

    #[test]
    fn variants_have_their_names_and_order() {
        assert_eq!(Named::ALL, [Named::One, Named::Two]);
        assert_eq!(Named::ALL.map(Named::as_str), ["one", "the other"]);
        assert_eq!(Named::Two.to_string(), "the other");
    }
}
