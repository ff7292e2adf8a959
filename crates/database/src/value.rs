//! Values of columns and parameters.

/// A value of a column or parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum DatabaseValue {
    /// The value is missing.
    Null,
    /// An integer with a sign.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// Text in UTF-8.
    Text(String),
    /// Bytes of any content.
    Blob(Vec<u8>),
}

/// A borrowed value of a column or parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueRef<'a> {
    /// The value is missing.
    Null,
    /// An integer with a sign.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// A text, which should be UTF-8.
    Text(&'a [u8]),
    /// Bytes of any content.
    Blob(&'a [u8]),
}

impl<'a> ValueRef<'a> {
    /// Returns the text; `None` if the value is no text.
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Self::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Returns the bytes; `None` if the value is neither text nor bytes.
    pub fn as_bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Text(bytes) | Self::Blob(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the name of the value's type.
    pub fn type_name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Integer(_) => "integer",
            Self::Real(_) => "real",
            Self::Text(_) => "text",
            Self::Blob(_) => "blob",
        }
    }
}

impl From<&str> for DatabaseValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<i64> for DatabaseValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl<'a> From<&'a DatabaseValue> for ValueRef<'a> {
    fn from(value: &'a DatabaseValue) -> Self {
        match value {
            DatabaseValue::Null => Self::Null,
            DatabaseValue::Integer(number) => Self::Integer(*number),
            DatabaseValue::Real(number) => Self::Real(*number),
            DatabaseValue::Text(text) => Self::Text(text.as_bytes()),
            DatabaseValue::Blob(bytes) => Self::Blob(bytes),
        }
    }
}

/// A type that can be the parameter of a statement.
pub trait ToParameter {
    /// Returns the value of the parameter.
    fn to_parameter(&self) -> ValueRef<'_>;
}

/// A type that can be read from a column.
pub trait FromColumn: Sized {
    /// Converts the value of a column; `None` if it has another type or is out of range.
    fn from_column(value: ValueRef<'_>) -> Option<Self>;
}

macro_rules! integer_values {
    ($($integer:ty)+) => {$(
        impl ToParameter for $integer {
            fn to_parameter(&self) -> ValueRef<'_> {
                ValueRef::Integer((*self).into())
            }
        }

        impl FromColumn for $integer {
            fn from_column(value: ValueRef<'_>) -> Option<Self> {
                match value {
                    ValueRef::Integer(number) => number.try_into().ok(),
                    _ => None,
                }
            }
        }
    )+};
}

integer_values!(u8 u16 u32 i32 i64);

impl ToParameter for bool {
    fn to_parameter(&self) -> ValueRef<'_> {
        ValueRef::Integer((*self).into())
    }
}

impl FromColumn for bool {
    fn from_column(value: ValueRef<'_>) -> Option<Self> {
        i64::from_column(value).map(|number| number != 0)
    }
}

impl ToParameter for f64 {
    fn to_parameter(&self) -> ValueRef<'_> {
        ValueRef::Real(*self)
    }
}

impl FromColumn for f64 {
    fn from_column(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Real(number) => Some(number),
            ValueRef::Integer(number) => Some(number as Self),
            _ => None,
        }
    }
}

impl ToParameter for str {
    fn to_parameter(&self) -> ValueRef<'_> {
        ValueRef::Text(self.as_bytes())
    }
}

impl ToParameter for String {
    fn to_parameter(&self) -> ValueRef<'_> {
        ValueRef::Text(self.as_bytes())
    }
}

impl FromColumn for String {
    fn from_column(value: ValueRef<'_>) -> Option<Self> {
        // A column with a codec has the type of bytes in some databases.
        Self::from_utf8(value.as_bytes()?.to_vec()).ok()
    }
}

impl ToParameter for [u8] {
    fn to_parameter(&self) -> ValueRef<'_> {
        ValueRef::Blob(self)
    }
}

impl ToParameter for Vec<u8> {
    fn to_parameter(&self) -> ValueRef<'_> {
        ValueRef::Blob(self)
    }
}

impl FromColumn for Vec<u8> {
    fn from_column(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Blob(bytes) => Some(bytes.to_vec()),
            _ => None,
        }
    }
}

impl<const N: usize> ToParameter for [u8; N] {
    fn to_parameter(&self) -> ValueRef<'_> {
        ValueRef::Blob(self)
    }
}

impl<const N: usize> FromColumn for [u8; N] {
    fn from_column(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Blob(bytes) => bytes.try_into().ok(),
            _ => None,
        }
    }
}

impl ToParameter for DatabaseValue {
    fn to_parameter(&self) -> ValueRef<'_> {
        self.into()
    }
}

impl FromColumn for DatabaseValue {
    fn from_column(value: ValueRef<'_>) -> Option<Self> {
        Some(match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Integer(number),
            ValueRef::Real(number) => Self::Real(number),
            ValueRef::Text(text) => Self::Text(String::from_utf8(text.to_vec()).ok()?),
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        })
    }
}

impl<T: ToParameter + ?Sized> ToParameter for &T {
    fn to_parameter(&self) -> ValueRef<'_> {
        (**self).to_parameter()
    }
}

impl<T: ToParameter> ToParameter for Option<T> {
    fn to_parameter(&self) -> ValueRef<'_> {
        self.as_ref()
            .map_or(ValueRef::Null, ToParameter::to_parameter)
    }
}

impl<T: FromColumn> FromColumn for Option<T> {
    fn from_column(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Null => Some(None),
            value => T::from_column(value).map(Some),
        }
    }
}

/// Makes the list of a statement's parameters.
#[macro_export]
macro_rules! params {
    () => {
        &[] as &[&dyn $crate::ToParameter]
    };
    ($($parameter:expr),+ $(,)?) => {
        &[$(&$parameter as &dyn $crate::ToParameter),+] as &[&dyn $crate::ToParameter]
    };
}
