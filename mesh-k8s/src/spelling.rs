//! How much two keys differ, for suggestions to users who misspelt one.

/// Returns the number of insertions, deletions and replacements of characters between two keys.
pub fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, character) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (column, expected) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(character != *expected);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_the_number_of_edits() {
        for (one, other, expect) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "ab", 1),
            ("prots", "ports", 2),
            ("", "ab", 2),
        ] {
            assert_eq!(distance(one, other), expect, "{one} {other}");
        }
    }
}
