using System.Runtime.CompilerServices;

[assembly: InternalsVisibleTo("Xlm.Unity.Editor")]
