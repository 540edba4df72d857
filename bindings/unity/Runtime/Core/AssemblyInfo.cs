using System.Runtime.CompilerServices;

[assembly: InternalsVisibleTo("Xlm.Tests")]
