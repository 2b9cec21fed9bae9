//! Writes mutants into the code, each behind a switch, so that one build has all of them. Only with
//! the feature `switches`; `cargo xtask mutants` builds and runs it (`mutants::switched`).
//!
//! `a < b` becomes `(if crate::mutant_switch(7) { /*[7*/ (a) <= (b) /*]7*/ } else { a < b })`. The
//! comments attribute an error of the compiler to its mutant.
//!
//! The argument is the directory; standard input has the mutants as JSON, and standard output gets
//! the numbers of the mutants that cannot have a switch: constants, and functions whose return type
//! depends on their body.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs, io};

use anyhow::Context;
use proc_macro2::LineColumn;
use serde_json::Value;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A mutant, as cargo-mutants describes it.
#[derive(Clone)]
struct Mutant {
    number: u64,
    genre: String,
    /// Line and column of the replaced text, from 1.
    place: (usize, usize),
    replacement: String,
}

/// A change of the text.
struct Change {
    start: usize,
    end: usize,
    kind: Kind,
}

enum Kind {
    /// A text at `start`, which is `end`.
    Insert(String),
    /// Instead of the expression, one of these for the mutant of the number.
    Alternatives(Vec<(u64, String)>),
}

/// Collects the changes of a file.
struct Collector<'a> {
    text: &'a str,
    /// The offsets of the lines.
    lines: Vec<usize>,
    mutants: &'a [Mutant],
    changes: Vec<Change>,
    placed: BTreeSet<u64>,
    /// Depth of constants, where no function can be called that is not constant.
    constants: usize,
}

fn main() -> anyhow::Result<()> {
    let root = env::args_os()
        .nth(1)
        .context("the argument is a directory")?;
    let list: Vec<Value> = serde_json::from_reader(io::stdin()).context("parse the mutants")?;
    let mut files: BTreeMap<String, Vec<Mutant>> = BTreeMap::new();
    for mutant in &list {
        let (file, mutant) = parse(mutant).context("a mutant lacks a field")?;
        files.entry(file).or_default().push(mutant);
    }
    let mut unplaced = Vec::new();
    for (file, mutants) in files {
        let path = Path::new(&root).join(&file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {file}"))?;
        let (text, placed) = switched(&text, &mutants).with_context(|| format!("parse {file}"))?;
        fs::write(&path, text).with_context(|| format!("write {file}"))?;
        let numbers = mutants.iter().map(|mutant| mutant.number);
        unplaced.extend(numbers.filter(|number| !placed.contains(number)));
    }
    serde_json::to_writer(io::stdout(), &unplaced).context("write the numbers")
}

fn parse(value: &Value) -> Option<(String, Mutant)> {
    let number = |field: &str| usize::try_from(value[field].as_u64()?).ok();
    let mutant = Mutant {
        number: value["number"].as_u64()?,
        genre: value["genre"].as_str()?.to_owned(),
        place: (number("line")?, number("column")?),
        replacement: value["replacement"].as_str()?.to_owned(),
    };
    Some((value["file"].as_str()?.to_owned(), mutant))
}

/// Returns the text with the mutants behind switches, and the numbers of these mutants.
fn switched(text: &str, mutants: &[Mutant]) -> syn::Result<(String, BTreeSet<u64>)> {
    let file = syn::parse_file(text)?;
    let starts = text.match_indices('\n').map(|(at, _)| at + 1);
    let mut collector = Collector {
        text,
        lines: [0].into_iter().chain(starts).collect(),
        mutants,
        changes: Vec::new(),
        placed: BTreeSet::new(),
        constants: 0,
    };
    collector.visit_file(&file);
    let mut changes = collector.changes;
    // An insertion comes before the expression that begins there, and an outer expression before
    // its parts.
    changes.sort_by_key(|change| {
        let is_expression = matches!(change.kind, Kind::Alternatives(_));
        (change.start, is_expression, usize::MAX - change.end)
    });
    let mut out = String::new();
    write(text, 0..text.len(), &changes, &mut out);
    Ok((out, collector.placed))
}

fn write(text: &str, range: std::ops::Range<usize>, changes: &[Change], out: &mut String) {
    let mut at = range.start;
    let mut rest = changes;
    while let [change, after @ ..] = rest {
        out.push_str(&text[at..change.start]);
        match &change.kind {
            Kind::Insert(inserted) => {
                out.push_str(inserted);
                at = change.start;
                rest = after;
            }
            Kind::Alternatives(alternatives) => {
                let inner = after.partition_point(|it| it.start < change.end);
                out.push('(');
                for (number, alternative) in alternatives {
                    out.push_str(&format!(
                        "if crate::mutant_switch({number}) {{ {} }} else ",
                        marked(*number, alternative)
                    ));
                }
                out.push_str("{ ");
                write(text, change.start..change.end, &after[..inner], out);
                out.push_str(" })");
                at = change.end;
                rest = &after[inner..];
            }
        }
    }
    out.push_str(&text[at..range.end]);
}

fn marked(number: u64, code: &str) -> String {
    format!("/*[{number}*/ {code} /*]{number}*/")
}

/// Whether an expression is a condition with `let`, which only a condition may contain.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(it) => has_let(&it.left) || has_let(&it.right),
        _ => false,
    }
}

/// Whether the body of a function decides about its type.
fn has_opaque_type(signature: &syn::Signature) -> bool {
    #[derive(Default)]
    struct Finder(bool);
    impl<'ast> Visit<'ast> for Finder {
        fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut finder = Finder::default();
    finder.visit_return_type(&signature.output);
    finder.0
}

impl Collector<'_> {
    fn offset(&self, place: LineColumn) -> usize {
        let line = self.lines[place.line - 1];
        let mut characters = self.text[line..].char_indices();
        let at = characters.nth(place.column).map(|(at, _)| line + at);
        at.unwrap_or(self.text.len())
    }

    fn range(&self, node: &impl Spanned) -> (usize, usize) {
        let span = node.span();
        (self.offset(span.start()), self.offset(span.end()))
    }

    fn code(&self, node: &impl Spanned) -> &str {
        let (start, end) = self.range(node);
        &self.text[start..end]
    }

    /// The mutants of a kind at a place, which get a switch unless it is in a constant.
    fn take(&mut self, genre: &str, place: LineColumn) -> Vec<Mutant> {
        if self.constants > 0 {
            return Vec::new();
        }
        let place = (place.line, place.column + 1);
        let mutants = self.mutants.iter();
        let taken = mutants.filter(|it| it.genre == genre && it.place == place);
        let taken: Vec<Mutant> = taken.cloned().collect();
        self.placed.extend(taken.iter().map(|it| it.number));
        taken
    }

    fn alternatives(
        &mut self,
        (start, end): (usize, usize),
        mutants: &[Mutant],
        code: impl Fn(&Mutant) -> String,
    ) {
        if mutants.is_empty() {
            return;
        }
        let alternatives = mutants.iter().map(|it| (it.number, code(it))).collect();
        self.changes.push(Change {
            start,
            end,
            kind: Kind::Alternatives(alternatives),
        });
    }

    fn insert(&mut self, at: usize, code: String) {
        self.changes.push(Change {
            start: at,
            end: at,
            kind: Kind::Insert(code),
        });
    }

    /// The function returns a value before its first statement.
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        if signature.constness.is_some() || has_opaque_type(signature) {
            return;
        }
        let start = first.span().start();
        for mutant in self.take("FnValue", start) {
            let value = format!("return {};", mutant.replacement);
            let code = format!(
                "if crate::mutant_switch({}) {{ {} }} ",
                mutant.number,
                marked(mutant.number, &value)
            );
            self.insert(self.offset(start), code);
        }
    }

    fn in_constant(&mut self, is_constant: bool, visit: impl FnOnce(&mut Self)) {
        self.constants += usize::from(is_constant);
        visit(self);
        self.constants -= usize::from(is_constant);
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item_const(&mut self, it: &'ast syn::ItemConst) {
        self.in_constant(true, |this| visit::visit_item_const(this, it));
    }

    fn visit_impl_item_const(&mut self, it: &'ast syn::ImplItemConst) {
        self.in_constant(true, |this| visit::visit_impl_item_const(this, it));
    }

    fn visit_item_static(&mut self, it: &'ast syn::ItemStatic) {
        self.in_constant(true, |this| visit::visit_item_static(this, it));
    }

    fn visit_expr_repeat(&mut self, it: &'ast syn::ExprRepeat) {
        self.visit_expr(&it.expr);
        self.in_constant(true, |this| this.visit_expr(&it.len));
    }

    fn visit_expr_const(&mut self, it: &'ast syn::ExprConst) {
        self.in_constant(true, |this| visit::visit_expr_const(this, it));
    }

    fn visit_type_array(&mut self, it: &'ast syn::TypeArray) {
        self.in_constant(true, |this| visit::visit_type_array(this, it));
    }

    fn visit_pat(&mut self, it: &'ast syn::Pat) {
        self.in_constant(true, |this| visit::visit_pat(this, it));
    }

    fn visit_item_fn(&mut self, it: &'ast syn::ItemFn) {
        self.function(&it.sig, &it.block);
        let is_constant = it.sig.constness.is_some();
        self.in_constant(is_constant, |this| visit::visit_item_fn(this, it));
    }

    fn visit_impl_item_fn(&mut self, it: &'ast syn::ImplItemFn) {
        self.function(&it.sig, &it.block);
        let is_constant = it.sig.constness.is_some();
        self.in_constant(is_constant, |this| visit::visit_impl_item_fn(this, it));
    }

    fn visit_trait_item_fn(&mut self, it: &'ast syn::TraitItemFn) {
        if let Some(block) = &it.default {
            self.function(&it.sig, block);
        }
        visit::visit_trait_item_fn(self, it);
    }

    fn visit_expr_binary(&mut self, it: &'ast syn::ExprBinary) {
        if !has_let(&it.left) && !has_let(&it.right) {
            let mutants = self.take("BinaryOperator", it.op.span().start());
            let (left, right) = (
                self.code(&it.left).to_owned(),
                self.code(&it.right).to_owned(),
            );
            let range = (self.range(&it.left).0, self.range(&it.right).1);
            self.alternatives(range, &mutants, |mutant| {
                format!("({left}) {} ({right})", mutant.replacement)
            });
        }
        visit::visit_expr_binary(self, it);
    }

    fn visit_expr_unary(&mut self, it: &'ast syn::ExprUnary) {
        let mutants = self.take("UnaryOperator", it.op.span().start());
        let operand = self.code(&it.expr).to_owned();
        self.alternatives(self.range(it), &mutants, |_| operand.clone());
        visit::visit_expr_unary(self, it);
    }

    fn visit_expr_match(&mut self, it: &'ast syn::ExprMatch) {
        for arm in &it.arms {
            match &arm.guard {
                // An arm that is deleted matches nothing.
                None => {
                    for mutant in self.take("MatchArm", arm.span().start()) {
                        let guard = format!(" if !crate::mutant_switch({}) ", mutant.number);
                        self.insert(self.range(&arm.pat).1, guard);
                    }
                }
                Some((_, guard)) if !has_let(guard) => {
                    let mutants = self.take("MatchArmGuard", guard.span().start());
                    self.alternatives(self.range(&**guard), &mutants, |mutant| {
                        mutant.replacement.clone()
                    });
                }
                Some(_) => {}
            }
        }
        visit::visit_expr_match(self, it);
    }

    fn visit_expr_struct(&mut self, it: &'ast syn::ExprStruct) {
        if let Some(base) = &it.rest {
            let base = self.code(&**base).to_owned();
            for field in &it.fields {
                let syn::Member::Named(name) = &field.member else {
                    continue;
                };
                let mutants = self.take("StructField", field.span().start());
                let range = self.range(&field.expr);
                if !mutants.is_empty() && field.colon_token.is_none() {
                    self.insert(range.0, format!("{name}: "));
                }
                self.alternatives(range, &mutants, |_| format!("({base}).{name}"));
            }
        }
        visit::visit_expr_struct(self, it);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(number: u64, genre: &str, place: (usize, usize), replacement: &str) -> Mutant {
        Mutant {
            number,
            genre: genre.to_owned(),
            place,
            replacement: replacement.to_owned(),
        }
    }

    fn check(code: &str, mutants: &[Mutant], expected: &str) {
        let (text, placed) = switched(code, mutants).expect("Rust");
        assert_eq!(text, expected);
        assert_eq!(placed.len(), mutants.len(), "{code}");
        syn::parse_file(&text).expect("still Rust");
    }

    #[test]
    fn mutants_of_nested_expressions_have_switches_of_their_own() {
        check(
            "fn f() -> bool { !(a + b < c) }",
            &[
                mutant(1, "FnValue", (1, 18), "true"),
                mutant(2, "UnaryOperator", (1, 18), ""),
                mutant(3, "BinaryOperator", (1, 26), "=="),
                mutant(4, "BinaryOperator", (1, 26), ">"),
                mutant(5, "BinaryOperator", (1, 22), "-"),
            ],
            "fn f() -> bool { if crate::mutant_switch(1) { /*[1*/ return true; /*]1*/ } \
             (if crate::mutant_switch(2) { /*[2*/ (a + b < c) /*]2*/ } else { !(\
             (if crate::mutant_switch(3) { /*[3*/ (a + b) == (c) /*]3*/ } else \
             if crate::mutant_switch(4) { /*[4*/ (a + b) > (c) /*]4*/ } else { \
             (if crate::mutant_switch(5) { /*[5*/ (a) - (b) /*]5*/ } else { a + b }) < c })) }) }",
        );
    }

    #[test]
    fn arms_guards_and_fields_have_switches() {
        check(
            "fn f() { match x { A => 1, B if c => 2, _ => 3 }; S { a: 1, b, ..base() } }",
            &[
                mutant(1, "MatchArm", (1, 20), ""),
                mutant(2, "MatchArmGuard", (1, 33), "false"),
                mutant(3, "StructField", (1, 55), ""),
                mutant(4, "StructField", (1, 61), ""),
            ],
            "fn f() { match x { A if !crate::mutant_switch(1)  => 1, \
             B if (if crate::mutant_switch(2) { /*[2*/ false /*]2*/ } else { c }) => 2, _ => 3 }; \
             S { a: (if crate::mutant_switch(3) { /*[3*/ (base()).a /*]3*/ } else { 1 }), \
             b: (if crate::mutant_switch(4) { /*[4*/ (base()).b /*]4*/ } else { b }), ..base() } }",
        );
    }

    #[test]
    fn constants_opaque_types_and_conditions_with_let_have_no_switch() {
        for (code, genre, place) in [
            ("const A: u8 = 1 + 2;", "BinaryOperator", (1, 17)),
            ("const fn f() -> u8 { 1 + 2 }", "BinaryOperator", (1, 24)),
            ("fn f() { [0; 1 + 2] }", "BinaryOperator", (1, 16)),
            ("fn f() -> impl Fn() { g() }", "FnValue", (1, 23)),
            ("fn f() { if a && let b = c {} }", "BinaryOperator", (1, 15)),
        ] {
            let (text, placed) = switched(code, &[mutant(1, genre, place, "-")]).expect("Rust");
            assert!(placed.is_empty(), "{code}");
            assert_eq!(text, code);
        }
    }
}
