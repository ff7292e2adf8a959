//! Types of expressions, and the table that holds them.
//!
//! Equal types have equal ids. An inferred type may be wider than the one that `tsc` infers, never
//! narrower: a mistake is reported only if every part of a union makes it one.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use selvedge_tools::{RegisteredTool, SchemaObject, SchemaType};

/// Maximum number of types of one script. A further type is unknown.
const MAX_TYPES: usize = 20_000;
/// Maximum number of parts of a union. A wider one is unknown.
const MAX_UNION_PARTS: usize = 24;
/// Maximum number of fields of an object. Further fields are unknown.
pub(super) const MAX_FIELDS: usize = 128;
/// Maximum number of elements of a tuple. A longer one is a list.
const MAX_TUPLE_ELEMENTS: usize = 64;
/// Number of parts of types that are looked at per byte of source, and for any script.
const PARTS_PER_BYTE: u32 = 64;
const MIN_PARTS: u32 = 50_000;

/// Index of a type in a [`TypeTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TypeId(u32);

impl TypeId {
    pub(super) const UNKNOWN: Self = Self(0);
    pub(super) const NEVER: Self = Self(1);
    pub(super) const UNDEFINED: Self = Self(2);
    pub(super) const NULL: Self = Self(3);
    pub(super) const BOOLEAN: Self = Self(4);
    pub(super) const NUMBER: Self = Self(5);
    pub(super) const STRING: Self = Self(6);
    pub(super) const UNDEFINED_OR_NULL: [Self; 2] = [Self::UNDEFINED, Self::NULL];
}

/// The types with fixed ids, in the order of the constants of [`TypeId`].
const FIXED_TYPES: [Type<'static>; 7] = [
    Type::Unknown,
    Type::Never,
    Type::Undefined,
    Type::Null,
    Type::Boolean,
    Type::Number,
    Type::String,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Type<'a> {
    /// Anything: every use is accepted.
    Unknown,
    /// No value: the code is not reached. Every use is accepted.
    Never,
    Undefined,
    Null,
    Boolean,
    Number,
    String,
    /// Exactly this string.
    Literal(&'a str),
    /// An object in the result of a tool.
    ResultObject(ResultObject<'a>),
    /// An object that the script makes or describes.
    Object(ObjectId),
    Array {
        element: TypeId,
        /// Whether it belongs to a tool's result, which cannot be changed.
        frozen: bool,
    },
    Tuple {
        elements: Rc<[TypeId]>,
        frozen: bool,
    },
    Promise(TypeId),
    /// What `values()` of a map and the like return.
    Iterator(TypeId),
    Map(TypeId, TypeId),
    Set(TypeId),
    /// A function of the script.
    Function {
        /// Types of the parameters; unknown without an annotation.
        params: Rc<[TypeId]>,
        result: TypeId,
    },
    /// A method of a built-in type as a value: `list.map` without a call.
    Method,
    /// The function of a tool.
    Tool(ByAddress<'a, RegisteredTool>),
    /// `tools` or a part of it: the prefix of the tools' names.
    Namespace(Rc<str>),
    /// A global that holds no tools, by its name, such as `Promise` or `parseInt`. The name may be
    /// undefined.
    Global(&'a str),
    Union(Rc<[TypeId]>),
}

impl Type<'_> {
    pub(super) fn is_list(&self) -> bool {
        matches!(self, Self::Array { .. } | Self::Tuple { .. })
    }

    pub(super) fn is_string(&self) -> bool {
        matches!(self, Self::String | Self::Literal(_))
    }

    /// Whether a value of this type may count as false in a condition.
    pub(super) fn can_be_falsy(&self) -> bool {
        matches!(
            self,
            Self::Unknown
                | Self::Undefined
                | Self::Null
                | Self::Boolean
                | Self::Number
                | Self::String
                | Self::Literal(_)
        )
    }
}

/// An object in the result of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ResultObject<'a> {
    pub(super) schema: ByAddress<'a, SchemaObject>,
    /// Name of the tool in scripts.
    pub(super) tool: &'a str,
    /// Path from the result to the object, such as `.entries[]`; empty for the result itself.
    pub(super) path: Rc<str>,
    /// Whether it cannot be changed; a deep copy can.
    pub(super) frozen: bool,
}

/// A reference that is compared by address.
pub(super) struct ByAddress<'a, T>(pub(super) &'a T);

impl<T> std::fmt::Debug for ByAddress<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

impl<T> Clone for ByAddress<'_, T> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl<T> PartialEq for ByAddress<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl<T> Eq for ByAddress<'_, T> {}

impl<T> Hash for ByAddress<'_, T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

/// Index of an object type in a [`TypeTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ObjectId(u32);

/// An object that the script makes or describes.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectType<'a> {
    pub(super) fields: Vec<(&'a str, TypeId)>,
    /// Type of fields that are not in `fields`. `None` if there are none.
    pub(super) index_type: Option<TypeId>,
    /// Whether its declaration lists all fields, so that assignments cannot add one.
    pub(super) is_declared: bool,
}

impl<'a> ObjectType<'a> {
    /// Adds a field, or replaces the one of the same name.
    pub(super) fn set_field(&mut self, name: &'a str, kind: TypeId) {
        match self.fields.iter().position(|(known, _)| *known == name) {
            Some(index) => self.fields[index].1 = kind,
            None if self.fields.len() < MAX_FIELDS => self.fields.push((name, kind)),
            None => self.index_type = Some(TypeId::UNKNOWN),
        }
    }

    pub(super) fn field(&self, name: &str) -> Option<TypeId> {
        let mut fields = self.fields.iter().rev();
        fields
            .find(|(known, _)| *known == name)
            .map(|field| field.1)
    }
}

/// The types of one script.
#[derive(Debug)]
pub(super) struct TypeTable<'a> {
    types: Vec<Type<'a>>,
    ids: HashMap<Type<'a>, TypeId>,
    objects: Vec<ObjectType<'a>>,
    /// The types of deep copies.
    copies: HashMap<TypeId, TypeId>,
    /// How many parts of types may still be looked at.
    parts_left: u32,
}

impl<'a> TypeTable<'a> {
    /// Creates the table for a script of this length.
    pub(super) fn new(source_bytes: usize) -> Self {
        let ids = FIXED_TYPES.into_iter().zip((0..).map(TypeId));
        Self {
            types: FIXED_TYPES.into(),
            ids: ids.collect(),
            objects: Vec::new(),
            copies: HashMap::new(),
            parts_left: (source_bytes as u32)
                .saturating_mul(PARTS_PER_BYTE)
                .saturating_add(MIN_PARTS),
        }
    }

    /// Takes parts of types, or fields, from the budget. Returns false if it is exhausted.
    pub(super) fn take_parts(&mut self, count: usize) -> bool {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.parts_left = self.parts_left.saturating_sub(count);
        self.parts_left > 0
    }

    /// Whether types are incomplete, because too many parts were looked at.
    pub(super) fn is_exhausted(&self) -> bool {
        self.parts_left == 0
    }

    pub(super) fn get(&self, id: TypeId) -> &Type<'a> {
        self.types.get(id.0 as usize).unwrap_or(&Type::Unknown)
    }

    pub(super) fn object(&self, id: ObjectId) -> &ObjectType<'a> {
        &self.objects[id.0 as usize]
    }

    pub(super) fn add(&mut self, kind: Type<'a>) -> TypeId {
        if let Some(id) = self.ids.get(&kind) {
            return *id;
        }
        if self.types.len() >= MAX_TYPES {
            return TypeId::UNKNOWN;
        }
        let id = TypeId(self.types.len() as u32);
        self.types.push(kind.clone());
        self.ids.insert(kind, id);
        id
    }

    pub(super) fn add_object(&mut self, object: ObjectType<'a>) -> TypeId {
        if self.types.len() >= MAX_TYPES {
            return TypeId::UNKNOWN;
        }
        let id = ObjectId(self.objects.len() as u32);
        self.objects.push(object);
        self.add(Type::Object(id))
    }

    pub(super) fn array(&mut self, element: TypeId) -> TypeId {
        self.add(Type::Array {
            element,
            frozen: false,
        })
    }

    pub(super) fn tuple(&mut self, elements: &[TypeId]) -> TypeId {
        self.tuple_or_list(elements, false)
    }

    fn tuple_or_list(&mut self, elements: &[TypeId], frozen: bool) -> TypeId {
        if elements.len() > MAX_TUPLE_ELEMENTS {
            let element = self.union(elements.iter().copied());
            return self.add(Type::Array { element, frozen });
        }
        self.add(Type::Tuple {
            elements: elements.into(),
            frozen,
        })
    }

    /// Returns the promise of a type. A promise of a promise is the inner one.
    pub(super) fn promise(&mut self, value: TypeId) -> TypeId {
        let value = self.awaited(value);
        self.add(Type::Promise(value))
    }

    /// Returns the parts of a union, or the type itself.
    pub(super) fn parts(&self, id: TypeId) -> Rc<[TypeId]> {
        match self.get(id) {
            Type::Union(parts) => parts.clone(),
            _ => Rc::new([id]),
        }
    }

    /// Joins types. Stops as soon as there are too many.
    pub(super) fn union(&mut self, options: impl IntoIterator<Item = TypeId>) -> TypeId {
        let (mut found, mut literals) = (Vec::new(), Vec::new());
        for option in options {
            let parts = match self.get(option) {
                Type::Union(parts) => parts.clone(),
                Type::Never => continue,
                _ => Rc::new([option]),
            };
            if !self.take_parts(parts.len()) || parts.contains(&TypeId::UNKNOWN) {
                return TypeId::UNKNOWN;
            }
            for part in parts.iter() {
                let list = match self.get(*part) {
                    Type::Literal(_) => &mut literals,
                    _ => &mut found,
                };
                if list.len() <= MAX_UNION_PARTS && !list.contains(part) {
                    list.push(*part);
                }
            }
            if found.len() > MAX_UNION_PARTS {
                return TypeId::UNKNOWN;
            }
        }
        // A union of many strings is a string.
        match found.contains(&TypeId::STRING) {
            true => {}
            false if found.len() + literals.len() > MAX_UNION_PARTS => found.push(TypeId::STRING),
            false => found.append(&mut literals),
        }
        found.sort_unstable();
        match found.len() {
            0 => TypeId::NEVER,
            1 => found[0],
            more if more > MAX_UNION_PARTS => TypeId::UNKNOWN,
            _ => self.add(Type::Union(found.into())),
        }
    }

    /// Applies a function to each part of a union, and joins the results.
    pub(super) fn map_parts(
        &mut self,
        id: TypeId,
        mut apply: impl FnMut(&mut Self, TypeId) -> TypeId,
    ) -> TypeId {
        let parts = self.parts(id);
        let mapped: Vec<TypeId> = parts.iter().map(|part| apply(self, *part)).collect();
        self.union(mapped)
    }

    /// Removes parts from a union.
    pub(super) fn filter_parts(
        &mut self,
        id: TypeId,
        mut keep: impl FnMut(&Type<'a>) -> bool,
    ) -> TypeId {
        let parts = self.parts(id);
        let kept: Vec<TypeId> = parts
            .iter()
            .copied()
            .filter(|part| keep(self.get(*part)))
            .collect();
        match kept.len() == parts.len() {
            true => id,
            false => self.union(kept),
        }
    }

    /// Removes `null` and `undefined`.
    pub(super) fn non_nullish(&mut self, id: TypeId) -> TypeId {
        self.filter_parts(id, |part| !matches!(part, Type::Null | Type::Undefined))
    }

    /// Returns the type after `await`.
    pub(super) fn awaited(&mut self, id: TypeId) -> TypeId {
        self.map_parts(id, |types, part| match types.get(part) {
            Type::Promise(value) => *value,
            _ => part,
        })
    }

    /// Replaces string literals by `string`.
    pub(super) fn widened(&mut self, id: TypeId) -> TypeId {
        self.map_parts(id, |types, part| match types.get(part) {
            Type::Literal(_) => TypeId::STRING,
            _ => part,
        })
    }

    /// Returns the type of a part of a tool's result.
    pub(super) fn type_of_schema(
        &mut self,
        schema: &'a SchemaType,
        tool: &'a str,
        path: &str,
        frozen: bool,
    ) -> TypeId {
        if !self.take_parts(1) {
            return TypeId::UNKNOWN;
        }
        match schema {
            SchemaType::Unknown => TypeId::UNKNOWN,
            SchemaType::Null => TypeId::NULL,
            SchemaType::Boolean => TypeId::BOOLEAN,
            SchemaType::Number => TypeId::NUMBER,
            SchemaType::String => TypeId::STRING,
            SchemaType::Literal(text) => self.add(Type::Literal(text)),
            SchemaType::Array(item) => {
                let element = self.type_of_schema(item, tool, &format!("{path}[]"), frozen);
                self.add(Type::Array { element, frozen })
            }
            SchemaType::Tuple(items) => {
                let items = items.iter().enumerate();
                let elements = items.map(|(index, item)| {
                    self.type_of_schema(item, tool, &format!("{path}[{index}]"), frozen)
                });
                let elements: Vec<TypeId> = elements.collect();
                self.tuple_or_list(&elements, frozen)
            }
            SchemaType::Object(object) => self.add(Type::ResultObject(ResultObject {
                schema: ByAddress(object),
                tool,
                path: path.into(),
                frozen,
            })),
            SchemaType::Union(options) => {
                let options: Vec<TypeId> = options
                    .iter()
                    .map(|option| self.type_of_schema(option, tool, path, frozen))
                    .collect();
                self.union(options)
            }
        }
    }

    /// Returns the type of a field of a result, or `None` if it has no such field.
    pub(super) fn result_field(&mut self, object: &ResultObject<'a>, name: &str) -> Option<TypeId> {
        let schema = object.schema.0;
        let path = format!("{}.{name}", object.path);
        if let Some(field) = schema.field(name) {
            let value = self.type_of_schema(&field.value, object.tool, &path, object.frozen);
            return Some(match field.required {
                true => value,
                false => self.union([value, TypeId::UNDEFINED]),
            });
        }
        let index_type = schema.index_type.as_ref()?;
        Some(self.type_of_schema(index_type, object.tool, &path, object.frozen))
    }

    /// Returns the type of a deep copy, which can be changed.
    pub(super) fn mutable_copy(&mut self, id: TypeId) -> TypeId {
        if let Some(known) = self.copies.get(&id) {
            return *known;
        }
        let copy = self.map_parts(id, |types, part| match types.get(part).clone() {
            Type::Array { element, .. } => {
                let element = types.mutable_copy(element);
                types.array(element)
            }
            Type::Tuple { elements, .. } => {
                let elements: Vec<TypeId> =
                    elements.iter().map(|e| types.mutable_copy(*e)).collect();
                types.tuple(&elements)
            }
            Type::ResultObject(object) => types.add(Type::ResultObject(ResultObject {
                frozen: false,
                ..object
            })),
            _ => part,
        });
        self.copies.insert(id, copy);
        copy
    }
}
