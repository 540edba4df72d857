// Prints what the C# declarations say of xlm.h, one fact a line, for a comparison with what a C compiler says.
using System;
using System.Reflection;
using System.Runtime.InteropServices;

internal static class AbiPrinter
{
    private const BindingFlags Fields = BindingFlags.Instance | BindingFlags.Public;
    private const BindingFlags Functions = BindingFlags.Static | BindingFlags.NonPublic;

    private static void Main(string[] words)
    {
        foreach (Type type in Assembly.LoadFrom(words[0]).GetTypes())
        {
            if (type.IsEnum && !type.IsNested) PrintEnum(type);
            if (type.IsValueType && type.Name.StartsWith("xlm_")) PrintStruct(type);
            if (type.Name == "NativeMethods") PrintFunctions(type);
        }
    }

    private static void PrintEnum(Type type)
    {
        foreach (string name in Enum.GetNames(type))
            Console.WriteLine("enum {0}.{1} {2}", type.Name, name, Convert.ToInt64(Enum.Parse(type, name)));
    }

    private static void PrintStruct(Type type)
    {
        Console.WriteLine("struct {0} {1}", type.Name, Marshal.SizeOf(type));
        foreach (FieldInfo field in type.GetFields(Fields))
        {
            IntPtr offset = Marshal.OffsetOf(type, field.Name);
            Console.WriteLine("field {0}.{1} {2} {3}", type.Name, field.Name, offset, Size(field.FieldType));
        }
    }

    private static int Size(Type type)
    {
        if (type.IsPointer) return IntPtr.Size;
        return Marshal.SizeOf(type.IsEnum ? Enum.GetUnderlyingType(type) : type);
    }

    private static void PrintFunctions(Type type)
    {
        foreach (MethodInfo method in type.GetMethods(Functions))
        {
            if (!method.IsDefined(typeof(DllImportAttribute), false)) continue;
            string line = "function " + method.Name + " " + Kind(method.ReturnType);
            foreach (ParameterInfo parameter in method.GetParameters()) line += " " + Kind(parameter.ParameterType);
            Console.WriteLine(line);
        }
    }

    private static string Kind(Type type)
    {
        if (type.IsPointer || type.IsByRef || type == typeof(IntPtr) || typeof(SafeHandle).IsAssignableFrom(type))
            return "pointer";
        return type.IsEnum ? Enum.GetUnderlyingType(type).Name : type.Name;
    }
}
